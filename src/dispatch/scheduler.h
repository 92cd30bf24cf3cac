// The request scheduler: Arlo's decisions, without threads, sockets, logging or clock reads.
//
// Events in (a request arrives, a request finishes, an instance joins, drains or leaves, time passes), decisions out
// (start this request on that instance, this one has expired, this one lost its instance). The gateway and the
// simulator link the same code.
//
// Paper: Arlo (ICPP'24), section 3.4 and Algorithm 1. The multi-level queue has one *level* per distinct max_length,
// 0 = shortest; in each level an indexed heap holds the instances, least loaded first. A request may run on any level
// whose max_length is at least its length; the smallest such level is its *ideal* level; a longer one is a demotion.
//
// Variants. Several networks may share the workers: each has its own levels, those of variant 0 first, and the rows of
// two never share a batch. An instance that holds runtimes of several is in a level of each. Under `late` a turn goes
// to the row that is due first, or with `deadline` batching to the batch that is worth most (late.cc), within each
// variant's share of the time (shares.h). Under the other policies, which bind on arrival, an instance serves its bound
// requests in turn, regardless of their variant.
//
// Bodies. Where variants are one network at several token counts, their rows wait in one line. When an instance has
// room, the body's chooser (batch_chooser.h) decides which rows form a batch, on which variant, and which are left out.
// A row is admitted if it could meet its deadline when served first. After that the plans decide: rows and clients have
// no turns, and a row that cannot be on time because of rows worth more is evicted.
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
// the predicted time (kTooLate); a waiting one expires when its turn or its deadline comes: any call may emit kExpired.
// A request that can meet its deadline but not be on time is *overdue*: it yields to all that can be on time, and
// starts where an instance idles, and in one of 32 turns in any case (turns.h). In a full queue an overdue request
// expires to make room for one that can be on time. Requests without time limits wait for ever and never yield.
//
// Bulk. A request of this class is overdue from the start, as one more client, and gets at most half of the queue. An
// overdue batch occupies its instance for at most a quarter of the SLO, as derived from its capacity, unless one
// request alone takes longer. Rows of requests that are too long to be on time arrive as bulk of one client, 0, so that
// these requests are served one after the other and forecast() holds for each.
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
#include <memory>
#include <span>
#include <vector>

#include "base/time.h"
#include "dispatch/batch_chooser.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

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

  // Sets a variant's share of the time of instances that it shares, relative to the sum over all that wait: above 0,
  // default 1. `late` only.
  void set_share(VariantId variant, double share);

  // From now on these variants, the quickest first, are a body: one network in several forms. Its rows all arrive for
  // the first of them and wait in one line; `chooser` decides which rows start as a batch, and on which variant. `late`
  // with batches only. Rows are late at their limits (aim, deadline); retried, bound and overdue rows run on the
  // first variant. For a body that is there the chooser only changes its rules, when it can. Throws
  // std::invalid_argument.
  void set_body(const std::vector<VariantId>& variants, std::unique_ptr<BatchChooser> chooser);
  // Dissolves the body with this first variant: rows waiting in its line are for that variant.
  void clear_body(VariantId variant);
  // Of a body, by its first variant, at its last decision: utility of a worker-second; 0 of none.
  [[nodiscard]] double price(VariantId variant) const;

  // Between the two, requests that arrive only wait: they come together, and are to start as batches. Nothing changes
  // with Batching::kOne. Other calls in between start what they would.
  void hold();
  void release(TimeNs now, Actions& out);
  // Algorithm 1 for `rs`. O(log(N/K)), plus O(L) for rs and O(K) for all but rs and ilb.
  Admitted arrive(Tag tag, const Arrival& arrival, TimeNs now, Actions& out);
  // The worker has finished a started request; its handle is gone, and with the last row of its batch the instance has
  // room again and starts waiting requests. A client that gave up frees nothing: the worker stays busy. Also ends a
  // kLost request (its answer was on the way).
  void finish(RequestHandle handle, Verdict verdict, TimeNs now, Actions& out);
  // True: `tag` was waiting under that handle, is removed, and the handle is gone. False: it has started, and finish()
  // must still be called; or it has expired, which is among the actions that the caller has yet to read, and its handle
  // may be another's by now.
  bool cancel(RequestHandle handle, Tag tag, TimeNs now, Actions& out);
  // A started request failed through no fault of the request (kLost, or a worker error). It is scheduled again, ahead
  // of all waiting ones, on an instance other than `avoid` where one fits (kNone: any). Never refused for a full queue.
  // Until it ends, the request also keeps off `avoid` when it is bound again. If its deadline has come, kExpired is
  // emitted and kQueued returned. kTooLong for a handle in another state. `most` above 0: one row of its batch may be
  // at fault. From now on the request goes in batches of at most that many rows (rounded down to a power of two), only
  // with other requests of the same limit.
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
  // Returns when such a request would finish if it arrived now, behind all that wait: the time that arrive() compares
  // with its limits. kNever: no active instance fits. It changes no decision; from the first call on the books of
  // timed.h are kept, and an instance found overdue is put off, as by an arrival.
  [[nodiscard]] TimeNs expected_finish(const Arrival& arrival, TimeNs now);
  // The same of all rows of a request that is to come. kNever twice: no active instance fits one of them. Later
  // arrivals that go first are not in it. O(rows + instances + levels).
  [[nodiscard]] RowsForecast forecast(std::span<const std::int32_t> lengths, VariantId variant, TimeNs now);
  // Returns how scarce the time of a variant's instances is: the time until one is free, plus the work that waits for
  // them, for any of their variants, divided by their number. So variants that share all their instances get the same
  // value. expected_finish() differs: there each variant has its share, and one without demand is served soon. kNever:
  // no active instance fits. Changes no decision, as above.
  [[nodiscard]] TimeNs expected_wait(std::int32_t length, VariantId variant, TimeNs now);
  [[nodiscard]] std::int32_t active_of(VariantId variant) const;  // active instances that hold the variant
  // Predicted time of `batch` rows of `length` on `runtime`; one row: a request alone. 0 for an unknown runtime.
  [[nodiscard]] TimeNs cost(RuntimeId runtime, std::int32_t length, std::int32_t batch = 1) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace arlo::dispatch
