#include "dispatch/policies/early_binding.h"

#include <algorithm>

#include "dispatch/policies/policies.h"
#include "dispatch/turns.h"

namespace arlo::dispatch {

Admitted EarlyBinding::arrive(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) {
  InstanceId id = s_.queue.head(rule_.pick(s_.queue, level, arrival.length, now)).id;
  const Rank rank = s_.ranks.next(arrival.client);
  const TimeNs limit = std::min(arrival.due, arrival.deadline);
  if (limit != kNever) {
    TimeNs finish = 0;
    id = in_time(id, {.deadline = limit, .rank = rank, .length = arrival.length, .variant_ = arrival.variant}, now,
                 &finish);
    if (finish > limit) return turns_.arrive_overdue(tag, arrival, level, finish, now, out);
  }
  if ((!s_.queue[id].has_room() || s_.held) && !turns_.may_wait(arrival, out)) return {Admission::kFull, kNone};
  const RequestHandle h = ledger_.admit(tag, arrival, rank);
  return {bind(h, id, now, out), h};
}

TimeNs EarlyBinding::expected_wait(std::int32_t length, std::int32_t level, TimeNs now) {
  const Arrival arrival{.length = length, .variant = s_.queue.level(level).variant};
  const GroupIndex g = s_.queue.first_fitting(level);
  return std::max<TimeNs>(expected_finish(arrival, level, now) - now - s_.queue.group_cost(g).alone(length), 0);
}

TimeNs EarlyBinding::expected_finish(const Arrival& arrival, std::int32_t level, TimeNs now) {
  TimeNs finish = 0;
  const TimeNs limit = std::min(arrival.due, arrival.deadline);
  in_time(s_.queue.head(rule_.pick(s_.queue, level, arrival.length, now)).id,
          {.deadline = limit, .rank = kLastRank, .length = arrival.length, .variant_ = arrival.variant}, now, &finish);
  return finish;
}

Admission EarlyBinding::place(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) {
  InstanceId id = pick_for(rule_, h, level, now);
  const Request& r = s_.requests[h];
  if (r.limit() != kNever) {
    TimeNs finish = 0;
    id = in_time(id, r, now, &finish);
    if (finish > r.limit()) return turns_.place_overdue(h, level, now, out);
  }
  return bind(h, id, now, out);
}

// A rule that counts requests may choose an instance that cannot be on time where another can: infaas fills one up
// first. A rule that weighs times has considered them all. O(N), and only for requests that would be overdue.
InstanceId EarlyBinding::in_time(InstanceId chosen, const Request& r, TimeNs now, TimeNs* finish) const {
  *finish = forecast_.bound_to(s_.queue[chosen], r, now);
  if (*finish <= r.limit() || needs_of(s_.options.policy).times) return chosen;
  const std::int32_t level = s_.ideal(r);
  for (InstanceId id = 0; id < s_.queue.ids_end(); ++id) {
    const Instance& x = s_.queue[id];
    if (!x.present || x.state != InstanceState::kActive || id == r.avoid || !s_.queue.covers(x, level)) continue;
    const TimeNs there = forecast_.bound_to(x, r, now);
    if (there >= *finish) continue;
    *finish = there;
    chosen = id;
  }
  return chosen;
}

Admission EarlyBinding::bind(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
  const bool room = s_.queue[id].has_room() && !s_.held;
  if (room) {
    ledger_.start_alone(h, id, now, out);
  } else {
    ledger_.charge(h, s_.queue[id], now);
    ledger_.wait_bound(h, id);
  }
  ledger_.refresh_key(id);
  return room ? Admission::kStarted : Admission::kQueued;
}

// Requests bound before this instance came would wait behind others for nothing: all that it fits are bound again.
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
  // Only parked requests are in the lines, and those up to what it holds fit.
  for (const Held& held : s_.queue.held(s_.queue[id])) {
    const std::int32_t first = s_.queue.first_of(held.variant);
    for (RequestHandle h = s_.lines.front(first, held.level); h != kNone; h = s_.lines.front(first, held.level)) {
      ledger_.take_out(h);
      found.push_back(h);
    }
  }
  for (InstanceId other = 0; other < s_.queue.ids_end(); ++other) {
    if (!s_.queue.present(other)) continue;
    RequestHandle next = kNone;
    for (RequestHandle h = s_.queue[other].waiting.head; h != kNone; h = next) {
      next = s_.requests[h].next;
      if (!s_.queue.covers(s_.queue[id], s_.ideal(s_.requests[h]))) continue;
      ledger_.take_out(h);
      found.push_back(h);
    }
  }
  std::sort(found.begin(), found.end(),
            [this](RequestHandle a, RequestHandle b) { return s_.requests[a].rank < s_.requests[b].rank; });
  return found;
}

}  // namespace arlo::dispatch
