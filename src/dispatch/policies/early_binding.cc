#include "dispatch/policies/early_binding.h"

#include <algorithm>

#include "dispatch/turns.h"

namespace arlo::dispatch {

Admitted EarlyBinding::arrive(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) {
  const InstanceId id = s_.queue.head(rule_.pick(s_.queue, level, arrival.length, now)).id;
  const Rank rank = s_.ranks.next(arrival.client);
  const TimeNs limit = std::min(arrival.due, arrival.deadline);
  if (limit != kNever) {
    const TimeNs finish = forecast_.bound_to(s_.queue[id], arrival.length, rank, now);
    if (finish > limit) return turns_.arrive_overdue(tag, arrival, level, finish, now, out);
  }
  if (!s_.queue[id].has_room() && !turns_.may_wait(out)) return {Admission::kFull, kNone};
  const RequestHandle h = ledger_.admit(tag, arrival, rank);
  return {bind(h, id, now, out), h};
}

Admission EarlyBinding::place(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) {
  const InstanceId id = pick_for(rule_, h, level, now);
  const Request& r = s_.requests[h];
  if (r.limit() != kNever && forecast_.bound_to(s_.queue[id], r.length, r.rank, now) > r.limit()) {
    return turns_.place_overdue(h, level, now, out);
  }
  return bind(h, id, now, out);
}

Admission EarlyBinding::bind(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
  const bool room = s_.queue[id].has_room();
  ledger_.charge(h, s_.queue[id], now);
  if (room) {
    ledger_.start(h, id, out);
  } else {
    ledger_.wait_bound(h, id);
  }
  ledger_.refresh_key(id);
  return room ? Admission::kStarted : Admission::kQueued;
}

// What was bound before this instance came would wait behind others for nothing: all that it fits is bound again.
void EarlyBinding::joined(InstanceId id, TimeNs now, Actions& out) {
  for (const RequestHandle h : take_fitting(id)) {
    ledger_.end_wait(h);
    if (s_.requests[h].deadline <= now) {
      ledger_.emit(ActionKind::kExpired, h, kNone, s_.ideal(s_.requests[h]), out);
      s_.requests.give_back(h);
      continue;
    }
    place(h, s_.ideal(s_.requests[h]), now, out);
  }
  turns_.serve(id, now, out);
}

// Every request that waits, parked or bound to another instance, and that this one fits: out of its FIFO, still counted
// as waiting, in order of rank.
std::vector<RequestHandle> EarlyBinding::take_fitting(InstanceId id) {
  std::vector<RequestHandle> found;
  const std::int32_t level = s_.queue[id].level;  // only parked requests are in the lines, and those up to here fit
  for (RequestHandle h = s_.lines.front(s_.requests, 0, level); h != kNone; h = s_.lines.front(s_.requests, 0, level)) {
    ledger_.take_out(h);
    found.push_back(h);
  }
  const std::int32_t longest = s_.queue.level(level).max_length;
  for (InstanceId other = 0; other < s_.queue.ids_end(); ++other) {
    if (!s_.queue.present(other)) continue;
    RequestHandle next = kNone;
    for (RequestHandle h = s_.queue[other].waiting.head; h != kNone; h = next) {
      next = s_.requests[h].next;
      if (s_.requests[h].length > longest) continue;
      ledger_.take_out(h);
      found.push_back(h);
    }
  }
  std::sort(found.begin(), found.end(),
            [this](RequestHandle a, RequestHandle b) { return s_.requests[a].rank < s_.requests[b].rank; });
  return found;
}

}  // namespace arlo::dispatch
