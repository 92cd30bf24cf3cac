// The types of the request scheduler's interface: its inputs and its decisions. See scheduler.h.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "base/time.h"

namespace arlo::dispatch {

using arlo::kNever;
using arlo::TimeNs;
using Tag = std::uint64_t;            // the caller's name for a request, never interpreted
using RequestHandle = std::uint32_t;  // dense, valid from arrive() until the request leaves; then reused
using InstanceId = std::uint32_t;     // dense, valid from join() until the instance is gone; then reused
using RuntimeId = std::uint32_t;      // index in the order of add_runtime() and add_bundle()
using BatchId = std::uint32_t;        // dense, valid until the last of its rows has left its instance; then reused

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::int32_t kMaxLength = 1 << 20;  // tokens, the longest max_length of a runtime
inline constexpr std::int32_t kMaxBatch = 1 << 16;   // rows, the largest max_batch

// One of the networks whose runtimes share the workers; each row is for one of them. From 0, below kVariants.
using VariantId = std::uint16_t;
inline constexpr VariantId kVariants = 64;

// One measured point of a latency profile.
struct LatencyPoint {
  std::int32_t length = 0;  // tokens
  std::int32_t batch = 1;   // rows
  TimeNs latency = 0;       // of the whole batch
};

// A model compiled for one maximum length. `static` runtimes take the time of max_length for requests of any
// length; `dynamic` ones take the time of the length (linear between points, flat outside them). Between measured
// batches also linear; above the largest one in proportion to the rows.
struct RuntimeSpec {
  std::int32_t max_length = 0;  // tokens, 1 to kMaxLength
  std::int32_t max_batch = 1;   // rows, 1 to kMaxBatch
  std::int32_t capacity = 0;    // M of Eq. 3 and Algorithm 1 line 8: requests within the SLO, > 0
  bool dynamic = false;
  std::vector<LatencyPoint> latency;  // at least one point; sorted by the constructor
  VariantId variant = 0;
};

enum class Policy : std::uint8_t { kRs, kIlb, kIg, kInfaas, kUniform, kEft, kLate };
// Names as in configuration: "rs", "ilb", "ig", "infaas", "uniform", "eft", "late". Throws std::invalid_argument.
Policy parse_policy(std::string_view name);
std::string_view policy_name(Policy policy);

// What an instance with room takes at a time. Names as in configuration: "one", "fill", "deadline".
enum class Batching : std::uint8_t {
  kOne,       // one row; a worker may join those that it has been sent itself
  kFill,      // the row whose turn it is and others that wait with it, as far as it pays and no deadline is lost
  kDeadline,  // the same, as far as each of them can be on time
};
Batching parse_batching(std::string_view name);  // throws std::invalid_argument

struct Options {
  Policy policy = Policy::kRs;
  double lambda = 0.85;            // Algorithm 1: initial congestion threshold, > 0
  double alpha = 0.9;              // Algorithm 1: threshold decay per level, in (0, 1]
  std::int32_t max_peek = 6;       // Algorithm 1: L, levels looked at, >= 1
  std::int32_t max_queued = 4096;  // requests of a variant waiting (not started); further ones are refused, >= 0
  Batching batching = Batching::kOne;
};

// A request as it arrives. An answer at `due` is on time; one at `deadline` is still wanted.
struct Arrival {
  std::int32_t length = 0;   // tokens
  TimeNs due = kNever;       // arrival + SLO: an answer after it is late; kNever: none is
  TimeNs deadline = kNever;  // an answer after it is worth nothing; kNever: it is always wanted
  std::uint64_t client = 0;  // who asks, for fairness; 0: unnamed, and all of those are one client
  bool bulk = false;         // of the class bulk, which fills what others leave; it is never due
  VariantId variant = 0;     // the network that it is for
  bool follows = false;      // it was admitted before, for another network: never refused for a full queue
  // Of a body (Scheduler::set_body):
  double utility = 1;      // of an answer that is right and in time, >= 0
  std::uint32_t kind = 0;  // what answers of one kind are alike in, to the body's chooser
  TimeNs arrived = 0;      // the scheduler's to set
};

enum class Admission : std::uint8_t {
  kStarted,  // a kStart action was emitted
  kQueued,   // bound to an instance, or waiting for late binding
  kParked,   // no present instance fits; waiting for one to join
  kTooLong,  // length above the longest runtime ever added for its variant, or below 1: refused, no handle
  kFull,     // max_queued reached: refused, no handle
  kTooLate,  // it is predicted to finish after its deadline: refused, no handle
};

struct Admitted {
  Admission admission = Admission::kTooLong;
  RequestHandle handle = kNone;  // kNone when refused
  TimeNs predicted = 0;          // kTooLate: the predicted time from now to its answer
};

// Predicted time from now until the last of several rows is answered.
struct RowsForecast {
  TimeNs alone = 0;   // if nothing else waited or ran
  TimeNs behind = 0;  // behind everything that waits or runs, as rows of the class bulk
};

// How an execution ended.
enum class Verdict : std::uint8_t {
  kAnswered,  // with a good answer: what it took says how quick the instance is
  kFailed,    // in any other way: what it took says nothing
};

enum class ActionKind : std::uint8_t {
  kStart,    // execute `tag` on `instance` now
  kExpired,  // `tag` was waiting, and its deadline has come or cannot be met any more; the handle is gone
  kLost,     // `tag` was executing on `instance`, which left; call retry() or abandon()
};

struct Action {
  ActionKind kind;
  RequestHandle handle;
  Tag tag;
  InstanceId instance;  // kNone for kExpired
  std::int32_t level;   // level it runs on (kStart, kLost); ideal level (kExpired)
  bool demoted;         // level above the ideal one
  RuntimeId runtime;    // that executes it (kStart), of the instance's bundle
  // kStart: the rows of one batch come one after the other, and have the same number here; kNone for a row alone.
  BatchId batch;
  bool evicted = false;  // kExpired: rows worth more go before it, and behind them it cannot make its deadline
};
using Actions = std::vector<Action>;  // appended to, never cleared, by every call

enum class RequestState : std::uint8_t {
  kGone,     // finished, expired, cancelled, abandoned or never admitted
  kWaiting,  // bound but not started, waiting for late binding, or parked
  kStarted,  // executing
  kLost,     // its instance left while it executed; retry(), abandon() or finish() comes next
};

enum class InstanceState : std::uint8_t { kActive, kDraining };

struct InstanceView {
  RuntimeId runtime;
  std::int32_t level;  // of the first of its variants
  InstanceState state;
  std::int32_t in_flight;  // batches started, not finished
  std::int32_t queued;     // bound to it, not started
};

// Checks of what the caller configures. They throw std::invalid_argument naming the field and its range.
void validate(const Options& options);
void validate(const RuntimeSpec& spec);  // all but the latency points, which CostModel checks

}  // namespace arlo::dispatch
