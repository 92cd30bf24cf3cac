#include "dispatch/policies/late/late_binding.h"

#include <algorithm>

#include "dispatch/turns.h"

namespace arlo::dispatch {

Admitted LateBinding::arrive(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) {
  const std::int32_t home = s_.queue.home(level);
  const bool chosen = s_.bodies.of(arrival.variant) != nullptr;
  bool first = false;
  const InstanceId id = chosen ? kNone : room_for(arrival, home, level, &first, now);
  const Rank rank = s_.ranks.next(arrival.client);
  const TimeNs limit = std::min(arrival.due, arrival.deadline);
  if (limit != kNever) {
    const TimeNs finish = finish_of(arrival, home, id, rank, now);
    if (finish > limit) return turns_.arrive_overdue(tag, arrival, level, finish, now, out);
  }
  if (first) {
    if ((id == kNone || s_.held) && !turns_.may_wait(arrival, out)) return {Admission::kFull, kNone};
    const RequestHandle h = ledger_.admit(tag, arrival, rank);
    if (id == kNone || s_.held) {
      ledger_.wait_in_line(h, level);
      return {Admission::kQueued, h};
    }
    ledger_.start_alone(h, id, now, out);
    ledger_.refresh_key(id);
    return {Admission::kStarted, h};
  }
  // It lines up, and the first in line may start for it; only if none does may the queue be too full.
  const RequestHandle h = ledger_.admit(tag, arrival, rank);
  ledger_.wait_in_line(h, level);
  if (!s_.held) balance(home, now, out);
  if (s_.requests[h].state == RequestState::kStarted) return {Admission::kStarted, h};
  std::int32_t& queued = s_.queued_of[arrival.variant];
  if (queued <= s_.options.max_queued) return {Admission::kQueued, h};
  --queued;  // whether it may wait is asked without it
  const bool waits = turns_.may_wait(arrival, out);
  ++queued;
  if (waits) return {Admission::kQueued, h};
  ledger_.remove_waiting(h);
  return {Admission::kFull, kNone};
}

InstanceId LateBinding::room_for(const Arrival& arrival, std::int32_t home, std::int32_t level, bool* first,
                                 TimeNs now) {
  *first = s_.lines.empty(s_.queue.lowest_at(home), home);
  const GroupIndex g = *first ? rule_.pick(s_.queue, level, arrival.length, now) : s_.queue.groups();
  return g == s_.queue.groups() ? kNone : s_.queue.head(g).id;
}

TimeNs LateBinding::finish_of(const Arrival& arrival, std::int32_t home, InstanceId id, Rank rank, TimeNs now) {
  if (id != kNone) return forecast_.next_on(s_.queue[id], arrival.variant, arrival.length, now);
  if (s_.bodies.of(arrival.variant) != nullptr) {  // it may go before all waiting rows
    return rule_.finish_of_turn(home, arrival.length, 1, now);
  }
  const TimeNs limit = std::min({arrival.due, arrival.deadline, kNever - 1});  // at kNever no level would be looked at
  return rule_.finish_in_line(home, arrival.length, rank, limit, now);
}

TimeNs LateBinding::expected_finish(const Arrival& arrival, std::int32_t level, TimeNs now) {
  const std::int32_t home = s_.queue.home(level);
  bool first = false;
  const InstanceId id = room_for(arrival, home, level, &first, now);
  return finish_of(arrival, home, id, kLastRank, now);
}

TimeNs LateBinding::expected_wait(std::int32_t /*length*/, std::int32_t level, TimeNs now) {
  return rule_.wait_of_all(s_.queue.home(level), now);
}

Admission LateBinding::place(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) {
  ledger_.wait_in_line(h, level);
  balance(s_.queue.home(level), now, out);
  return Admission::kQueued;
}

bool LateBinding::on_time_elsewhere(RequestHandle h, TimeNs now) {
  const Request& r = s_.requests[h];
  return rule_.finish_of_turn(s_.queue.home(s_.ideal(r)), r.length, s_.lines[s_.ideal(r)].count, now) <= r.limit();
}

void LateBinding::joined(InstanceId id, TimeNs now, Actions& out) { turns_.serve(id, now, out); }

// Waiting requests that only this instance fits are bound to it.
void LateBinding::draining(InstanceId id, TimeNs now) {
  Instance& x = s_.queue[id];
  for (const Held& held : s_.queue.held(x)) {
    for (std::int32_t level = held.level; level >= s_.queue.first_of(held.variant) && !s_.fits(level); --level) {
      while (!s_.lines[level].fifo.empty()) {
        const RequestHandle h = s_.lines[level].fifo.head;
        ledger_.take_out(h);
        ledger_.end_wait(h);
        ledger_.charge(h, x, now);
        ledger_.wait_bound(h, id);
      }
    }
  }
}

// The longest homes first: a longer request has fewer instances to go to.
void LateBinding::look_again(TimeNs now, Actions& out) {
  if (s_.lines.total() == 0) return;
  for (std::int32_t level = s_.queue.levels() - 1; level >= 0; --level) {
    if (s_.queue.has_active(level)) balance(level, now, out);
  }
}

// Starts requests of a home, first come first, while there is an instance for the first one.
void LateBinding::balance(std::int32_t home, TimeNs now, Actions& out) {
  const std::int32_t lowest = s_.queue.lowest_at(home);
  for (RequestHandle h = s_.lines.front(lowest, home); h != kNone; h = s_.lines.front(lowest, home)) {
    const Request& r = s_.requests[h];
    if (r.deadline <= now) {
      ledger_.expire_one(h, out);
      continue;
    }
    const InstanceId id = pick_for(rule_, h, s_.ideal(r), now);
    if (id == kNone) {  // what the first one keeps off may still have room for another
      if (may_serve(r.avoid)) turns_.serve(r.avoid, now, out);
      return;
    }
    const bool chosen = r.limit() == kNever || s_.chosen_late(r);
    if (chosen || forecast_.turn_on(s_.queue[id], r, now) <= r.limit()) {
      if (!turns_.start(h, id, now, out)) return;
      ledger_.refresh_key(id);
    } else if (on_time_elsewhere(h, now)) {
      return;
    } else {
      turns_.pass(h, id, now, out);
      turns_.serve(id, now, out);
    }
  }
}

bool LateBinding::may_serve(InstanceId id) const {
  return id != kNone && s_.queue.present(id) && s_.queue[id].state == InstanceState::kActive && s_.queue[id].has_room();
}

}  // namespace arlo::dispatch
