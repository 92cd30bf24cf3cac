// The simulator's event loop: arrivals, dispatch by the very scheduler that the gateway runs, batches, workers that
// come, go, change their runtime, fail or slow down. Pure as src/dispatch is; the caller plans, from outside, between
// calls of advance().
//
// A worker executes one batch at a time. A started row reaches it `hop_out` later and waits there in order. Where the
// scheduler forms batches (dispatch::Batching), the worker executes them as they are; where it sends rows one by one, a
// free worker takes up to max_batch of the rows that have arrived, all at once. A batch takes the time of the true
// latency profile of its runtime at the longest row (dynamic runtimes) times the batch's noise times the worker's
// slowness. The scheduler learns of the end `hop_back` later. A request's latency is the time from its arrival to that
// moment plus `overhead`, which occupies nothing (section 5.2.1 of the paper: 0.8 ms).
//
// Outcomes. Each arrival has exactly one:
//   on_time   answered within the SLO
//   late      answered after the SLO
//   rejected  refused on arrival: too long for every runtime, the queue is full, or no answer can be had before the
//             timeout
//   expired   its timeout came while it waited or before its answer, or could not be met when its turn came
//   failed    lost with its worker more than `retries` times, or never served by the end
// (`cancelled`, the sixth outcome, does not occur: simulated clients give up only by their timeout.)
//
// Time limits. With a `timeout` each request is due at its arrival + SLO and dead at its arrival + timeout, as in the
// gateway: the scheduler refuses requests that cannot be answered, and those that cannot be on time yield to those that
// can (dispatch/turns.h). A worker is busy with a request until it is done, whether or not the client has gone. Without
// a timeout there are no limits: clients wait for ever, as in the paper, and each line is first come, first served.
// Requests of the class bulk are never due, and wait for kBulkPatience times the timeout.
//
// Order of events at equal times: the calls of the caller (fail, remove, replace), then execution ends and rows reach
// workers (by worker id), then the scheduler learns of ends (in order of execution end), joins (in the order in which
// they were set), expiry, arrivals (in the order fed). It is the order that dispatch/scheduler.h asks for. Where
// hop_back is 0 the scheduler learns of an end within it: rows that it then starts on that worker are in time for the
// next batch if hop_out is also 0, and it learns of the ends of two workers in the order of their ids. A worker whose
// last request is known to have ended begins to load, or is gone, within that event. advance(t) handles all events due
// before t and none due at t, so that a caller who acts at t acts first.
//
// Time ends at 2^61 ns (73 years): an execution that would end later ends then.
//
// Same calls, same result, to the last bit: all times are integers, noise is a function of (seed, number of the
// arrival) and no container is walked in hash order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/cascade/cascade.h"
#include "flow/pipeline/pipeline.h"
#include "flow/rules/guard.h"
#include "simulate/histogram.h"
#include "solve/tokens/chooser.h"

namespace arlo::simulate {

using dispatch::kNever;
using dispatch::RuntimeId;
using dispatch::TimeNs;
using WorkerId = std::uint32_t;  // in the order of add_worker(), never reused
inline constexpr TimeNs kBulkPatience = 60;

struct Options {
  dispatch::Options dispatch;
  TimeNs slo = 0;            // of each variant of which set_variant() says nothing, > 0
  TimeNs timeout = kNever;   // the same; from the arrival; > 0
  TimeNs overhead = 0;       // added to the latency of each answer
  TimeNs hop_out = 0;        // scheduler to worker
  TimeNs hop_back = 0;       // worker to scheduler
  std::int32_t retries = 2;  // of a request whose worker failed
  std::uint64_t seed = 0;    // of the noise
  TimeNs warmup = 0;         // requests that arrive before it are served but not counted in Totals
  bool record = false;       // keep columns()
  double bulk_share = 0;     // of the requests, drawn one by one, that are of the class bulk; 0 to 1
  // Quantiles of the factor on each execution time, evenly spaced; empty: no noise. At most 2^20,
  // each above 0 and at most 1e6. A batch takes the factor of its first row.
  std::vector<double> noise;
};

struct RuntimeOptions {
  dispatch::RuntimeSpec spec;                 // what the scheduler believes
  std::int32_t inflight_limit = 1;            // of an instance
  std::vector<dispatch::LatencyPoint> truth;  // what execution takes; empty: as believed
};

enum class Outcome : std::uint8_t { kOnTime, kLate, kRejected, kExpired, kFailed, kPending };
inline constexpr int kOutcomes = 5;  // without kPending

enum class WorkerState : std::uint8_t { kStarting, kServing, kDraining, kGone };

// Sums over the requests that arrived at or after `warmup`. Unanswered ones are in `arrived` only. Requests of the
// class bulk have no SLO: they are counted by themselves, and otherwise only in tokens, padded_tokens, batches and
// rows.
struct Totals {
  std::uint64_t arrived = 0;
  std::uint64_t outcomes[kOutcomes] = {};
  std::uint64_t demoted = 0;        // answered, and started on a level above the ideal one
  std::uint64_t retried = 0;        // times that a lost request was scheduled again (not: found expired then)
  std::uint64_t tokens = 0;         // of the answered requests
  std::uint64_t padded_tokens = 0;  // computed for them: max_length, or the longest of the batch on a dynamic runtime
  std::uint64_t batches = 0;        // that began to execute at or after `warmup`, and came to their end
  std::uint64_t rows = 0;           // of these
  double latency_sum_ns = 0;        // of the answered requests (on_time and late)
  double wait_sum_ns = 0;           // part of it: arrival to begin of execution
  double execute_sum_ns = 0;        // part of it: execution
  TimeNs latency_max = 0;
  std::uint64_t bulk_arrived = 0;
  std::uint64_t bulk_answered = 0;
  double bulk_latency_sum_ns = 0;  // of the answered ones
};

// Events since the last call of take_recent(), warm-up included, bulk excluded. Latencies of answers, as a histogram.
struct Recent {
  std::uint64_t arrived = 0;
  std::uint64_t answered = 0;
  std::uint64_t on_time = 0;
  std::uint64_t unanswered = 0;  // rejected, expired, failed
  double latency_sum_ns = 0;
};

struct WorkerView {
  RuntimeId runtime;  // or bundle; in service, or to come (kStarting)
  WorkerState state;
  std::int32_t waiting;  // requests bound to it or at it, not executing
  std::int32_t executing;
  TimeNs since;          // of the state
  TimeNs busy;           // executing, in all; the batch that runs included up to now
  std::uint64_t served;  // requests executed to their end, in all
};

struct RuntimeView {
  std::uint64_t served = 0;   // answers from it that are counted in Totals
  std::uint64_t demoted = 0;  // of these, from a lower ideal level
  std::uint64_t batches = 0;  // executed to their end, in all
  TimeNs busy = 0;            // worker time in all, without the batches that still run
};

// One row for each arrival in order, with Options::record.
struct Columns {
  std::vector<TimeNs> arrived;
  std::vector<std::int32_t> length;
  std::vector<std::uint8_t> variant;
  std::vector<TimeNs> latency;        // -1 without an answer
  std::vector<TimeNs> wait;           // arrival to the begin of execution; of the last try, -1 when it never began
  std::vector<std::int32_t> worker;   // that began to execute it then; -1 none
  std::vector<std::int16_t> runtime;  // of that worker then; -1 none
  std::vector<Outcome> outcome;
  std::vector<std::int8_t> stage;   // of a cascade: whose answer it got; -1 none
  std::vector<std::int8_t> reason;  // flow::Reason; of a pipeline DropReason of the first drop; -1 none
  std::vector<float> accuracy;      // of a pipeline: expected, of the answered part; -1 none
};

// A cascade: the rows that arrive are for the first of its stages, and go on by the gateway's rules. Row n has the
// answers of entry n modulo `rows` of the records.
struct Cascade {
  std::vector<dispatch::VariantId> variants;  // of its stages; their runtimes
  flow::Rules rules;
  std::uint64_t seed = 0;
  std::size_t rows = 0;              // of the records, > 0
  std::vector<double> confidence;    // [rows, stages]
  std::vector<std::int32_t> tokens;  // [rows, stages]: of the row as that stage gets it; empty, or 0: all of it
  TimeNs margin = 0;                 // before its timeout a row with an answer ends with it
  bool auto_price = false;
};

// A pipeline: the rows that arrive are roots for its entry, and src/flow/pipeline decides where they go. The number of
// children that an edge makes of a row is drawn from (seed, number of the root, its way through edges), independent of
// the variants, so that these are compared under equal luck.
struct Pipeline {
  enum class Children : std::uint8_t {
    kConstant,   // the mean, rounded
    kCeil,       // one of the two whole numbers around the mean
    kPoisson,    // of that mean
    kEmpirical,  // one of `counts`, scaled to the mean
    kTrace,      // that of `counts` with the number of the root, in order of arrival, scaled to the mean; then again
  };
  struct Edge {
    Children kind = Children::kCeil;
    std::vector<double> take;          // [variants of the tail]: share of the rows that take it
    std::vector<double> mean;          // [variants of the tail]: children of those, on average
    std::vector<std::int32_t> counts;  // kEmpirical, kTrace: at least one is above 0
    std::int32_t max = 1 << 16;        // children; more are left out
    // Tokens of the children of a row, and shares of the rows that have them; empty: as the parent has.
    std::vector<std::pair<std::int32_t, double>> lengths;
  };
  // Records of labelled rows. Each root is one of them, drawn by its luck, so that variants are right and wrong,
  // certain and uncertain on the same rows; so are its children.
  struct Rows {
    struct Stage {
      std::vector<flow::Guard> guards;   // of its edges and exits; empty: shares decide, as without rows
      bool first = false;                // one edge at most
      std::vector<float> scores;         // [guards, variants, rows]
      std::vector<std::int32_t> labels;  // [variants, rows]
    };
    std::size_t count = 0;            // above 0
    std::vector<std::uint8_t> right;  // [prefixes, rows]: the answer of this way is
    std::vector<Stage> stages;        // [stages]
  };
  flow::pipeline::Spec spec;
  std::optional<Rows> rows;
  std::vector<Edge> edges;                 // as in `spec`
  std::vector<std::vector<double>> exits;  // [stages][variants]: share of the rows that end there regardless of edges
  TimeNs deadline = kNever;                // of a root, from its arrival: an answer after it is worth nothing
  std::uint64_t seed = 0;
};

// Rows of one network at several token counts: the variant of a request that arrives is a number of `queries`, of which
// set_variant() says the time limits, and it is late at the timeout.
struct TokenQueries {
  struct Query {
    double utility = 1;
    std::uint32_t kind = 0;  // of Rules::accuracy; with bins, that of the first one, which those of the others follow
  };
  solve::tokens::TokenCounts counts;
  std::vector<Query> queries;
  std::vector<std::int32_t> bins;  // ends of length bins in tokens, ascending, the last open above; empty: one
};

// Of the roots that arrived at or after `warmup`, and of what they visited.
struct PipelineTotals {
  std::uint64_t roots = 0;    // that have ended
  std::uint64_t on_time = 0;  // answered within the SLO, without a drop
  std::uint64_t late = 0;
  std::uint64_t failed = 0;   // ended by a drop, or lost
  std::uint64_t partial = 0;  // answered, without all of it
  double accuracy_sum = 0;    // of the answered ones, on time or not: expected, or, of recorded rows, the right share
  double on_time_accuracy_sum = 0;
  std::uint64_t leaves_on_time = 0;  // answers of visits that made no children
  std::uint64_t leaves_late = 0;
  double leaf_accuracy_sum = 0;                              // of them
  std::uint64_t dropped[flow::pipeline::kDropReasons] = {};  // visits
  std::uint64_t fell_back = 0;                               // visits that an answer before them stood for
  std::uint64_t rerouted = 0;
  std::vector<std::uint64_t> visits;                 // [variants], stage by stage: entered
  std::vector<std::vector<std::int64_t>> by_length;  // [variants], index = tokens; those of the warm-up too
  // Of all roots, those of the warm-up too: visits of a variant that were answered, and of these those without
  // children; children that they had, by edge.
  struct Made {
    std::uint64_t answered = 0;
    std::uint64_t ended = 0;
    std::vector<std::uint64_t> children;  // [edges]
  };
  std::vector<Made> made;  // [variants]
};

class Engine {
 public:
  // Throws std::invalid_argument naming the field and its range.
  explicit Engine(const Options& options);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  RuntimeId add_runtime(const RuntimeOptions& runtime);
  // The time limits of the requests of a variant, and its share of the workers (dispatch::Scheduler::set_share).
  void set_variant(dispatch::VariantId variant, TimeNs slo, TimeNs timeout, double share);
  // Every request is a row of this cascade; before the first one.
  void set_cascade(Cascade cascade);
  // Every request is a root of this pipeline; before the first one, and after all runtimes. Its visits are no requests:
  // of the counters only `batches`, `rows` and those of workers and runtimes cover them.
  void set_pipeline(Pipeline pipeline);
  // Every request is one of these; before the first one, and after all runtimes.
  void set_tokens(TokenQueries tokens);
  // A plan for it, in force from now() on.
  void plan(const flow::pipeline::Plan& plan);
  // Runtimes that a worker holds together; the id is that of a runtime for add_worker() and replace().
  RuntimeId add_bundle(const std::vector<RuntimeId>& runtimes, std::int32_t inflight_limit);

  // --- calls that act at now(); all throw std::invalid_argument for an unknown id or a state that does not allow it

  // A worker that serves `runtime` from `at` (>= now) on.
  WorkerId add_worker(RuntimeId runtime, TimeNs at);
  // Drains the worker, and when it is empty loads `runtime`, which takes `delay`. Also of a worker that drains or
  // starts (one that starts: from now on).
  void replace(WorkerId worker, RuntimeId runtime, TimeNs delay);
  // Drains the worker; it is gone when it is empty.
  void remove(WorkerId worker);
  // The worker dies: its rows come back and are retried elsewhere; rows already executed are still answered when
  // hop_back has passed. It serves the same runtime again after `restart`, or the runtime that it was to load if it
  // drained for replace(); kNever, or if it drained for remove(): it is gone for good.
  void fail(WorkerId worker, TimeNs restart);
  // Executions that begin from now on take `factor` times as long (above 0, at most 1e6), until the next call; also
  // after a restart or a replacement.
  void slow(WorkerId worker, double factor);

  // --- time

  // Feeds requests; `arrived` ascends, from now() and from the last one fed. `variant` of each; empty: all are of the
  // first. Copies.
  void feed(std::span<const TimeNs> arrived, std::span<const std::int32_t> length,
            std::span<const dispatch::VariantId> variant = {});
  // Handles everything due before `until`; now() is `until` then. Arrivals must be fed up to there.
  void advance(TimeNs until);
  // No more arrivals: handles the fed ones until no event is due. Requests that can no longer be served fail. now() is
  // the moment of the last event.
  void finish();
  [[nodiscard]] TimeNs now() const;

  // --- observers

  [[nodiscard]] const Totals& totals() const;
  [[nodiscard]] const Histogram& latency() const;  // of the answers counted in totals()
  // The same of the requests of one variant; batches and rows are counted in totals() only.
  [[nodiscard]] const Totals& totals(dispatch::VariantId variant) const;
  [[nodiscard]] const Histogram& latency(dispatch::VariantId variant) const;
  // Puts the recent latencies into `counts` (by bucket of the recent histogram, up to the last one used) and forgets
  // them.
  Recent take_recent(std::vector<std::uint64_t>& counts);
  [[nodiscard]] static TimeNs recent_bucket(std::size_t bucket);              // least value; 2^7 buckets to a doubling
  [[nodiscard]] const std::vector<std::int64_t>& arrivals_by_length() const;  // since the start, index = tokens
  // The same of the visits of a variant of a pipeline.
  [[nodiscard]] const std::vector<std::int64_t>& arrivals_by_length(dispatch::VariantId variant) const;
  [[nodiscard]] std::size_t workers() const;
  [[nodiscard]] WorkerView worker(WorkerId worker) const;
  [[nodiscard]] std::size_t runtimes() const;
  [[nodiscard]] RuntimeView runtime(RuntimeId runtime) const;
  [[nodiscard]] bool cascade() const;                             // set_cascade() was called
  [[nodiscard]] std::int32_t price() const;                       // of it
  [[nodiscard]] const PipelineTotals* pipeline() const;           // null: there is none
  [[nodiscard]] double worker_price(std::int32_t variant) const;  // of a pipeline's, of a worker-second
  [[nodiscard]] std::int32_t queued() const;                      // waiting at the scheduler
  [[nodiscard]] std::int32_t in_flight() const;                   // started
  [[nodiscard]] const Columns& columns() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace arlo::simulate
