// Decides whose turn it is when an instance has room, and handles requests that cannot be on time.
//
// A request whose limits are known to be out of reach is never started: the books predict its finish behind all
// requests sent or waiting before it. If its deadline is out of reach, it is refused on arrival or expires when its
// turn comes. If it can meet its deadline but not be on time, it is *overdue*: it leaves its line and yields to all
// that can be on time. Overdue requests start on idle instances, and in one of kShare turns in any case. So an overload
// costs only the requests that come too late, regardless of their clients' timeouts.
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

  // Returns the time by which a request with this due time should finish.
  static TimeNs aim(TimeNs due, TimeNs now) { return due == kNever ? kNever : due - (due - now) / 16; }

  // Starts what waits for an instance while it has room; then brings its key up to date, or lets it go.
  void serve(InstanceId id, TimeNs now, Actions& out);

  // Starts the batch chosen for an instance with room when it is this waiting request's turn. False: no batch was
  // chosen, which only happens to a body. Evicted rows leave, or yield as overdue ones do. The key is left to the
  // caller.
  bool start(RequestHandle h, InstanceId id, TimeNs now, Actions& out);

  // Handles an arrival that would finish at `finish`, after its limit, on the policy's choice.
  Admitted arrive_overdue(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs finish, TimeNs now, Actions& out);
  // An arrival of the class bulk, of any level.
  Admitted arrive_bulk(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out);
  // A request of any history that is overdue, in no FIFO, and not counted as waiting.
  Admission place_overdue(RequestHandle h, std::int32_t level, TimeNs now, Actions& out);
  // A waiting request, whose instance or line has come to it, cannot be on time: it yields, or expires.
  void pass(RequestHandle h, InstanceId id, TimeNs now, Actions& out);

  // Returns false when one more request of a variant may not wait. In a full queue an overdue request makes room, or
  // several where retried ones have filled it beyond its bound. Held requests do not count as waiting as far as there
  // is room for them.
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
  // Returns the request next in turn, or kNone, and handles those that cannot be on time.
  RequestHandle next(InstanceId id, TimeNs now, Actions& out);

  State& s_;
  Ledger& ledger_;
  Forecast& forecast_;
  ByDeadline by_deadline_;
  BatchChoice choice_;
  std::vector<const Held*> held_;  // what the instance holds of each variant of a body; null: nothing
  Binding* binding_ = nullptr;
};

}  // namespace arlo::dispatch
