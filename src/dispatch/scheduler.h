// The request scheduler: Arlo's decisions, without threads, sockets, logging or clock reads.
//
// Events in (a request arrives, a request finishes, an instance joins, drains or leaves, time passes), decisions out
// (start this request on that instance, this one has expired, this one lost its instance). The gateway and the
// simulator link this very code.
//
// Paper: Arlo (ICPP'24), section 3.4 and Algorithm 1. The multi-level queue has one *level* per distinct max_length,
// 0 = shortest; in each level an indexed heap holds the instances, least loaded first. A request may run on any level
// whose max_length is at least its length; the smallest such level is its *ideal* level; a longer one is a demotion.
//
// Variants. Several networks may share the workers: each has levels of its own, those of variant 0 first, and the rows
// of two never share a batch. An instance that holds runtimes of several stands in a level of each. Under `late` a
// turn goes to the row that is due first, or with `deadline` batching to the batch that is worth most (late.cc), as far
// as each variant gets its share of the time (shares.h); under the others, that bind on arrival, an instance serves
// what is bound to it in turn, whatever its variant.
//
// Bodies. Where variants are one network at several token counts, their rows wait in one line, and the batch, its count
// and who is left out are decided together when an instance has room (batching/bodies.h, solve/tokens/chooser.h). Its
// rows are judged on arrival by what they could have if they went first, and by the plans after that: they have no
// turns, clients have none among them, and what cannot be on time beside what is worth more is evicted.
//
// Waiting. Early-binding policies (rs, ilb, ig, infaas, uniform, eft) bind a request to an instance on arrival: it
// waits in that instance's FIFO until the instance has room (its in-flight limit). `late` keeps the request in a FIFO
// per ideal level, and an instance that gets room takes the request it should serve next. Under every policy a request
// that no active instance fits is *parked* in the FIFO of its ideal level until an instance joins, it expires, or the
// caller cancels it. Every FIFO is in the fair order of fair_ranks.h: order of admission while there is one client, and
// with several the n-th waiting request of one stands n turns back. Requests that are retried go before all others.
//
// Time limits. Nothing is started that cannot finish by its deadline as far as the books know (timed.h: the latency
// profile, the pace of the instance, all that is sent or waits before it). Such a request is refused on arrival with
// the predicted time (kTooLate); a waiting one expires when its turn comes, or when its deadline does: any call may
// emit kExpired. What can only not be on time any more is *overdue*: it yields to all that can be, and starts where an
// instance idles, and in one of 32 turns in any case (turns.h). In a full queue an overdue one makes room for one that
// can be on time, and expires. Requests without time limits wait for ever, and never yield.
//
// Bulk. A request of this class stands among the overdue from the start, as a client beside the others, and gets at
// most half of the queue. What starts of the overdue keeps its instance no longer than a quarter of the SLO, as its
// capacity tells it, unless one request alone does. Rows of requests that are too long to be on time arrive as bulk of
// one client, 0, so that these requests are served one after the other: what forecast() predicts holds for each.
//
// No request waits for ever. A request is passed by later ones only in these ways, each of them bounded:
//   retried ones       each at most once for each of its retries;
//   other clients      16 later admissions for each request that its own client had before it (fair_ranks.h);
//   late               an instance takes from another line than its own at most 3 times in a row (late.cc);
//   other lines        of a bundle, under `late` with `deadline` batching, until two full batches before its limit;
//   other variants     under `late`, until one is an eighth of this one's SLO on all instances ahead of its share of
//                      the time (shares.h);
//   when it is overdue 31 of 32 turns go to others.
// So one with n before it in its line starts within (n + 1) executions of its instance when it is bound early, within
// 4 (n + 1) under `late`, and within 32 (n + 1) when it is overdue, n counting what may pass it by the first two.
//
// Order of events at equal times. Calls are processed in the order made; a caller with several events at one instant
// must make them in this order: leave, drain, finish, join, expire, cancel, arrive. Ties between instances go to the
// lower level, then to the lower instance id; ties between requests to the one admitted first. Tested in
// tests/cpp/ and tests/golden/. `now` never goes back, and lies within 2^61 ns (73 years) of the origin.
//
// Misuse. A handle or an id in a state that the call does not expect (gone, not started, ...) changes nothing; state()
// and present() tell. Only the constructor, parse_policy, add_runtime and join throw.
//
// Threads: none. One Scheduler belongs to one thread, or to one lock.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "solve/tokens/chooser.h"

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

// A network, of those whose runtimes share the workers: a row is for one of them. From 0, below kVariants.
using VariantId = std::uint16_t;
inline constexpr VariantId kVariants = 64;

// One measured point of a latency profile.
struct LatencyPoint {
  std::int32_t length = 0;  // tokens
  std::int32_t batch = 1;   // rows
  TimeNs latency = 0;       // of the whole batch
};

// A model compiled for one maximum length. `static` runtimes take the time of max_length whatever the request's
// length; `dynamic` ones take the time of the length (linear between points, flat outside them). Between measured
// batches linear too; above the largest one in proportion to the rows.
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
  kFill,      // the row whose turn it is, and what waits beside it, as far as it pays and no deadline is lost
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

// What is asked for. An answer at `due` is on time, one at `deadline` is still wanted.
struct Arrival {
  std::int32_t length = 0;   // tokens
  TimeNs due = kNever;       // arrival + SLO: an answer after it is late; kNever: none is
  TimeNs deadline = kNever;  // an answer after it is worth nothing; kNever: it is always wanted
  std::uint64_t client = 0;  // who asks, for fairness; 0: unnamed, and all of those are one client
  bool bulk = false;         // of the class bulk, which fills what others leave; it is never due
  VariantId variant = 0;     // the network that it is for
  bool follows = false;      // it was admitted before, for another network: never refused for a full queue
  // Of a body (set_tokens):
  double utility = 1;      // of an answer that is right and in time, >= 0
  std::uint32_t kind = 0;  // of Rules::accuracy
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
  bool evicted = false;  // kExpired: what is worth more goes before it, and it cannot make its deadline beside that
};
using Actions = std::vector<Action>;  // appended to, never cleared, by every call

// A body: variants that are one network at several token counts. Its rows all arrive for the first of them, and start
// on a runtime of any.
struct TokenCounts {
  std::vector<VariantId> variants;  // ascending by tokens: by time, too
  solve::tokens::Rules rules;       // accuracy of each of them, for every kind of rows
};

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

class Scheduler {
 public:
  // Throws std::invalid_argument, naming the field and its range, for bad options.
  explicit Scheduler(Options options);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  // Runtimes may be added at any time; a new max_length makes a new level and shifts the level numbers above it.
  // `uniform` takes runtimes of one max_length only. Throws std::invalid_argument.
  RuntimeId add_runtime(const RuntimeSpec& spec);

  // Runtimes that a worker holds together: any of them may run next, each row on the one where it costs least. join()
  // takes the id as that of a runtime; the bundle's level is that of its longest. At least one runtime, none twice, no
  // bundle among them. Throws std::invalid_argument.
  RuntimeId add_bundle(const std::vector<RuntimeId>& runtimes);

  // An instance with room for `inflight_limit` batches at a time enters service; waiting requests that it fits, parked
  // or bound to other instances, are bound again in order of admission. Its id is the smallest one free.
  // O(K + N + W log W), W the requests that wait. Throws std::invalid_argument for an unknown runtime or a limit
  // below 1.
  InstanceId join(RuntimeId runtime, std::int32_t inflight_limit, TimeNs now, Actions& out);
  // No further requests; those bound but not started are bound elsewhere where another active instance fits them, and
  // stay otherwise. Under `late` the waiting requests that only this instance fits are bound to it for the same reason.
  // The instance is gone (its id free) when the last one finishes, at once when there is none; present() tells.
  // Returns true when it is gone already.
  bool drain(InstanceId instance, TimeNs now, Actions& out);
  // Gone at once (a dead worker). Started requests come back as kLost, in the order they were started; bound ones are
  // bound again.
  void leave(InstanceId instance, TimeNs now, Actions& out);

  // Of the time of instances that it shares, a variant may count on its share by the sum of all that wait: above 0, 1
  // unless it is said. `late` alone.
  void set_share(VariantId variant, double share);

  // From now on these variants are a body: which of them executes a batch is decided when it starts. `late` with
  // batches alone. Rows are late at their limits (aim, deadline); what is retried, bound or overdue runs on the first
  // variant. Throws std::invalid_argument.
  void set_tokens(const TokenCounts& counts);
  // It is no body any more, by its first variant: what waits in its line is for that one.
  void clear_tokens(VariantId variant);
  // Of a body, by its first variant, at its last decision: utility of a worker-second; 0 of none.
  [[nodiscard]] double token_price(VariantId variant) const;

  // Between the two, requests that arrive only wait: they come together, and are to start as batches. Nothing changes
  // with Batching::kOne. Other calls in between start what they would.
  void hold();
  void release(TimeNs now, Actions& out);
  // Algorithm 1 for `rs`. O(log(N/K)), plus O(L) for rs and O(K) for all but rs and ilb.
  Admitted arrive(Tag tag, const Arrival& arrival, TimeNs now, Actions& out);
  // The worker is through with a started request; its handle is gone, and with the last row of its batch the instance
  // has room again and starts what waits. A client that
  // gave up frees nothing: the worker is busy all the same. Also ends a kLost request (its answer was on the way).
  void finish(RequestHandle handle, Verdict verdict, TimeNs now, Actions& out);
  // True: `tag` was waiting under that handle, is removed, and the handle is gone. False: it has started, and finish()
  // must still be called; or it has expired, which is among the actions that the caller has yet to read, and its handle
  // may be another's by now.
  bool cancel(RequestHandle handle, Tag tag, TimeNs now, Actions& out);
  // A started request failed on its instance through no fault of its own (kLost, or an error of the worker) and is
  // scheduled again, ahead of what waits, on another instance than `avoid` where one fits (kNone: any). Never refused
  // for a full queue. Until it ends, the request keeps off `avoid` when it is bound again, too. When its deadline has
  // come it is emitted as kExpired instead, and kQueued returned. kTooLong for a handle in another state.
  // `most` above 0: one of its batch may be at fault. From now on it goes in batches of so many rows at most (of powers
  // of two, the next one below), with others of which the same was said only.
  Admission retry(RequestHandle handle, InstanceId avoid, TimeNs now, Actions& out, std::int32_t most = 0);
  // A kLost request is given up; its handle is gone.
  void abandon(RequestHandle handle);
  // Emits kExpired for every waiting request whose deadline is at or before `now`, earliest first. Under `late` it also
  // looks at all waiting requests again: instances that have fallen behind may no longer be worth the wait.
  void expire(TimeNs now, Actions& out);
  // Earliest deadline among waiting requests; kNever when there is none. May be early (a lazy heap), never late.
  [[nodiscard]] TimeNs next_deadline() const;

  // Observers.
  [[nodiscard]] std::int32_t levels() const;
  [[nodiscard]] std::int32_t level_max_length(std::int32_t level) const;
  [[nodiscard]] VariantId level_variant(std::int32_t level) const;
  // -1 when none is long enough
  [[nodiscard]] std::int32_t ideal_level(std::int32_t length, VariantId variant = 0) const;
  [[nodiscard]] std::int32_t queued() const;   // waiting, parked ones included
  [[nodiscard]] std::int32_t parked() const;   // waiting with no present instance that fits
  [[nodiscard]] std::int32_t overdue() const;  // waiting, and too late to be on time
  [[nodiscard]] std::int32_t in_flight() const;
  [[nodiscard]] std::int32_t queued_of(VariantId variant) const;
  [[nodiscard]] std::int32_t parked_of(VariantId variant) const;
  [[nodiscard]] std::int32_t in_flight_of(VariantId variant) const;
  [[nodiscard]] std::int32_t instances() const;
  // Some active instance is long enough.
  [[nodiscard]] bool fits_any(std::int32_t length, VariantId variant = 0) const;
  // Time of a row of this length in full batches, on the runtime of active instances that it would take. 0: a variant
  // whose rows all take as long; kNever: no active instance is long enough.
  [[nodiscard]] TimeNs cost_of_length(std::int32_t length, VariantId variant = 0) const;
  [[nodiscard]] bool present(InstanceId instance) const;       // active or draining
  [[nodiscard]] InstanceView view(InstanceId instance) const;  // all zero when it is not present
  [[nodiscard]] RequestState state(RequestHandle handle) const;
  // When such a request would finish if it arrived now, behind all that waits for it: what arrive() holds against its
  // limits. kNever: no active instance fits. It changes no decision; from the first call on the books of timed.h are
  // kept, and an instance that is found overdue is put off, as by an arrival.
  [[nodiscard]] TimeNs expected_finish(const Arrival& arrival, TimeNs now);
  // The same of all rows of a request that is to come. kNever twice: no active instance fits one of them. Later
  // arrivals that go first are not in it. O(rows + instances + levels).
  [[nodiscard]] RowsForecast forecast(std::span<const std::int32_t> lengths, VariantId variant, TimeNs now);
  // How dear the time of the instances is that hold a variant: until one of them is free, and then what waits for them
  // by their number, whichever of their variants it is for. So of variants that share all of their instances it is the
  // same, as expected_finish() is not: there each has its share, and one that nobody wants is served soon. kNever: no
  // active instance fits. Changes no decision, as above.
  [[nodiscard]] TimeNs expected_wait(std::int32_t length, VariantId variant, TimeNs now);
  [[nodiscard]] std::int32_t active_of(VariantId variant) const;  // active instances that hold the variant
  // Predicted time of `batch` rows of `length` on `runtime`; one row: a request alone. 0 for an unknown runtime.
  [[nodiscard]] TimeNs cost(RuntimeId runtime, std::int32_t length, std::int32_t batch = 1) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace arlo::dispatch
