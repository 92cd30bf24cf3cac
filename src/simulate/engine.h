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
#include <span>
#include <vector>

#include "simulate/agenda.h"
#include "simulate/journeys.h"
#include "simulate/roots.h"
#include "simulate/rows.h"

namespace arlo::simulate {

class Engine {
 public:
  // Throws std::invalid_argument naming the field and its range.
  explicit Engine(const Options& options);

  RuntimeId add_runtime(const RuntimeOptions& runtime) { return core_.fleet.add_runtime(runtime); }
  // Runtimes that a worker holds together; the id is that of a runtime for add_worker() and replace().
  RuntimeId add_bundle(const std::vector<RuntimeId>& runtimes, std::int32_t inflight_limit) {
    return core_.fleet.add_bundle(runtimes, inflight_limit);
  }
  // The time limits of the requests of a variant, and its share of the workers (dispatch::Scheduler::set_share).
  void set_variant(dispatch::VariantId variant, TimeNs slo, TimeNs timeout, double share);
  // Every request is a row of this cascade; before the first one.
  void set_cascade(Cascade cascade);
  // Every request is a root of this pipeline; before the first one, and after all runtimes. Its visits are no requests:
  // of the counters only `batches`, `rows` and those of workers and runtimes cover them.
  void set_pipeline(Pipeline pipeline);
  // Every request is one of these; before the first one, and after all runtimes.
  void set_tokens(TokenQueries tokens);
  // A plan for the pipeline, in force from now() on.
  void plan(const flow::pipeline::Plan& plan);

  // --- calls that act at now(); all throw std::invalid_argument for an unknown id or a state that does not allow it

  // A worker that serves `runtime` from `at` (>= now) on.
  WorkerId add_worker(RuntimeId runtime, TimeNs at) { return core_.fleet.add_worker(runtime, at, core_.now); }
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
  void slow(WorkerId worker, double factor) { core_.fleet.slow(worker, factor); }

  // --- time

  // Feeds requests; `arrived` ascends, from now() and from the last one fed. `variant` of each; empty: all are of the
  // first. Copies.
  void feed(std::span<const TimeNs> arrived, std::span<const std::int32_t> length,
            std::span<const dispatch::VariantId> variant = {}) {
    feed_.add(arrived, length, variant);
  }
  // Handles everything due before `until`; now() is `until` then. Arrivals must be fed up to there.
  void advance(TimeNs until);
  // No more arrivals: handles the fed ones until no event is due. Requests that can no longer be served fail. now() is
  // the moment of the last event.
  void finish();
  [[nodiscard]] TimeNs now() const { return core_.now; }

  // --- observers

  // Sums and latencies of all requests and of the requests of one variant (batches and rows: of all only), and records.
  [[nodiscard]] const Accounts& accounts() const { return core_.accounts; }
  // What happened since the last call.
  Recent take_recent() { return core_.accounts.take_recent(); }
  // Since the start, index = tokens.
  [[nodiscard]] const std::vector<std::int64_t>& arrivals_by_length() const { return by_length_; }
  // The same of the visits of a variant of a pipeline.
  [[nodiscard]] const std::vector<std::int64_t>& arrivals_by_length(dispatch::VariantId variant) const;
  [[nodiscard]] std::size_t workers() const { return core_.fleet.size(); }
  [[nodiscard]] WorkerView worker(WorkerId worker) const;
  [[nodiscard]] std::size_t runtimes() const { return core_.fleet.runtimes(); }
  [[nodiscard]] RuntimeView runtime(RuntimeId runtime) const;
  [[nodiscard]] const Journeys* cascade() const { return journeys_; }  // null: there is none
  [[nodiscard]] const PipelineTotals* pipeline() const { return roots_ ? &roots_->totals : nullptr; }  // the same
  [[nodiscard]] std::int32_t queued() const { return core_.scheduler.queued(); }        // waiting at the scheduler
  [[nodiscard]] std::int32_t in_flight() const { return core_.scheduler.in_flight(); }  // started

 private:
  void need_new(const char* mode) const;
  void run(TimeNs until);
  void arrive(const Feed::Arrival& arrival);
  void step(WorkerId worker);
  void answer(Slot slot);
  void settle();
  void lost(Slot slot);
  void workers_gone();

  Core core_;
  std::unique_ptr<Rows> rows_;
  Journeys* journeys_ = nullptr;  // `rows_`, when it is one
  Roots* roots_ = nullptr;
  bool expires_;  // some requests have time limits
  std::vector<std::int64_t> by_length_;
  Feed feed_;
  Returns returns_;
};

}  // namespace arlo::simulate
