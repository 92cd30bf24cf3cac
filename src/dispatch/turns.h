// Whose turn it is when an instance has room, and what becomes of requests that cannot be on time.
//
// A request whose limits are known to be out of reach is never started: the books say when it would finish, with all
// that is sent already and waits before it. If its deadline is out of reach it is refused on arrival, or expires when
// its turn comes. If it can only not be on time any more it is *overdue*: it leaves its line and yields to all that can
// be on time. What is overdue starts on an instance that idles, and in one of kShare turns in any case. So an overload
// costs those that come too late and no others, whatever time their clients give them.
//
// On time is aimed at a sixteenth of the time early (aim()): in an overload each line is as long as the limits allow,
// so every start is at the edge, and half of the predictions err on the wrong side.
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch/batch_chooser.h"
#include "dispatch/batching/by_deadline.h"
#include "dispatch/binding.h"
#include "dispatch/forecast.h"
#include "dispatch/ledger.h"
#include "dispatch/state.h"

namespace arlo::dispatch {

class Turns {
 public:
  // While such requests wait, one in so many starts of an instance is of one that is overdue.
  static constexpr std::int32_t kShare = 32;

  Turns(State& state, Ledger& ledger, Forecast& forecast)
      : s_(state), ledger_(ledger), forecast_(forecast), by_deadline_(state) {}
  void set_binding(Binding& binding) { binding_ = &binding; }

  // By when a request that is due then should finish.
  static TimeNs aim(TimeNs due, TimeNs now) { return due == kNever ? kNever : due - (due - now) / 16; }

  // Starts what waits for an instance while it has room; then brings its key up to date, or lets it go.
  void serve(InstanceId id, TimeNs now, Actions& out);

  // Starts the batch that is chosen for an instance that has room, when it is this waiting request's turn. False: none
  // is, which only happens to a body. What is evicted leaves, or yields as what is overdue. The key is left to the
  // caller.
  bool start(RequestHandle h, InstanceId id, TimeNs now, Actions& out);

  // An arrival that would finish at `finish` where the policy would have it: after its limit.
  Admitted arrive_overdue(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs finish, TimeNs now, Actions& out);
  // An arrival of the class bulk, of any level.
  Admitted arrive_bulk(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out);
  // A request of any history that is overdue, in no FIFO, and not counted as waiting.
  Admission place_overdue(RequestHandle h, std::int32_t level, TimeNs now, Actions& out);
  // A waiting request, whose instance or line has come to it, cannot be on time: it yields, or expires.
  void pass(RequestHandle h, InstanceId id, TimeNs now, Actions& out);

  // False when one more of a variant may not wait. Where its queue is full, one that is overdue makes room, or several
  // where retried ones have filled it beyond its bound. Those that are held do not wait as far as there is room for
  // them.
  bool may_wait(const Arrival& arrival, Actions& out) {
    const VariantId variant = arrival.variant;
    const std::int32_t queued = s_.queued_of[variant];
    return arrival.follows || queued < s_.options.max_queued ||
           (s_.held && queued < s_.options.max_queued + rows_with_room(variant)) || make_room(variant, out);
  }

 private:
  // When it can begin something new, where times count.
  [[nodiscard]] TimeNs start_on(const Instance& x, TimeNs now) const {
    return s_.timed ? forecast_.start_on(x, now) : now;
  }
  VariantId choose_of(const Body& body, RequestHandle first, InstanceId id, TimeNs now);
  void evict(RequestHandle h, InstanceId id, TimeNs now, Actions& out);
  bool make_room(VariantId variant, Actions& out);
  [[nodiscard]] std::int32_t rows_with_room(VariantId variant) const;
  bool start_overdue(InstanceId id, TimeNs now, Actions& out);
  RequestHandle overdue_for(InstanceId id, TimeNs now, Actions& out);
  InstanceId idle_for(std::int32_t level, std::int32_t length, InstanceId avoid, TimeNs now) const;
  // The request next in turn, or kNone, and what is done with those that cannot be on time.
  RequestHandle next(InstanceId id, TimeNs now, Actions& out);

  State& s_;
  Ledger& ledger_;
  Forecast& forecast_;
  ByDeadline by_deadline_;
  BatchChoice choice_;
  std::vector<const MultiLevelQueue::Held*> held_;  // what the instance holds of each variant of a body; null: nothing
  Binding* binding_ = nullptr;
};

}  // namespace arlo::dispatch
