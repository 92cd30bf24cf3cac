#include "dispatch/turns.h"

#include <algorithm>

namespace arlo::dispatch {

void Turns::serve(InstanceId id, TimeNs now, Actions& out) {
  Instance& x = s_.queue[id];
  while (x.has_room()) {
    const bool owes = s_.any_overdue(x) && x.owed >= kShare - 1 && x.state == InstanceState::kActive;
    if (owes && start_overdue(id, now, out)) continue;
    const RequestHandle h = next(id, now, out);
    if (h != kNone && s_.chosen_late(s_.requests[h])) {
      if (start_chosen(id, s_.requests[h].variant(), now, out)) continue;
    } else if (h != kNone) {
      start(h, id, now, out);
      continue;
    }
    const bool idles = s_.any_overdue(x) && x.idles() && x.state == InstanceState::kActive;
    if (!idles || !start_overdue(id, now, out)) break;
  }
  if (x.state == InstanceState::kActive) {
    ledger_.refresh_key(id);
  } else if (x.outstanding() == 0) {
    s_.queue.remove_instance(id);
  }
}

void Turns::start(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
  rows_.assign(1, h);
  const Bundle::Member& on =
      s_.batching() ? gather_.batch(id, now, rows_) : s_.cost(s_.queue[id], s_.requests[h]).of(s_.requests[h].length);
  ledger_.start_waiting(rows_, id, on, s_.requests[h].variant(), now, out);
}

bool Turns::start_chosen(InstanceId id, VariantId line, TimeNs now, Actions& out) {
  Body& body = *s_.bodies.of(line);
  const Instance& x = s_.queue[id];
  const TimesOn times(s_.queue, body, id);
  const TimeNs start = s_.timed ? forecast_.start_on(x, now) : now;
  const auto& decision = body.chooser.choose(start, std::max(s_.queue.with(line), 1), times);
  const bool starts = decision.starts;
  rows_.assign(decision.rows.begin(), decision.rows.end());
  evicted_ = decision.evicted;
  for (const std::uint64_t h : evicted_) {
    const auto handle = static_cast<RequestHandle>(h);
    s_.requests[handle].evicted = true;
    // One that may still be answered after its limit yields from now on.
    if (s_.requests[handle].deadline <= s_.requests[handle].limit()) {
      ledger_.expire_one(handle, out);
    } else {
      pass(handle, id, now, out);
    }
  }
  if (!starts) return false;
  if (body.last.size() <= id) body.last.resize(id + 1);
  body.last[id] = decision.count + 1;
  ledger_.start_waiting(rows_, id, *times.on(decision.count, decision.longest), body.variants[decision.count], now,
                        out);
  return true;
}

RequestHandle Turns::next(InstanceId id, TimeNs now, Actions& out) {
  const Instance& x = s_.queue[id];
  for (;;) {
    RequestHandle h = x.waiting.head;
    if (h == kNone && x.state == InstanceState::kActive) h = binding_->next_for(id, now);
    if (h == kNone) return kNone;
    const Request& r = s_.requests[h];
    if (r.deadline <= now) {
      ledger_.expire_one(h, out);
      continue;
    }
    if (s_.chosen_late(r) && x.state == InstanceState::kActive) return h;
    if (r.limit() == kNever || x.state != InstanceState::kActive) return h;
    const TimeNs finish = forecast_.turn_on(x, r, now);
    if (finish <= r.limit()) return h;
    if (r.instance == kNone && binding_->on_time_elsewhere(h, now)) return kNone;
    pass(h, id, now, out);
  }
}

void Turns::pass(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
  const Request& r = s_.requests[h];
  if (forecast_.next_on(s_.queue[id], r, now) > r.deadline) {
    ledger_.expire_one(h, out);
    return;
  }
  ledger_.take_out(h);
  ledger_.end_wait(h);
  ledger_.wait_overdue(h, s_.ideal(r), now);
}

bool Turns::start_overdue(InstanceId id, TimeNs now, Actions& out) {
  const RequestHandle h = overdue_for(id, now, out);
  if (h == kNone) return false;
  const Request& r = s_.requests[h];
  s_.overdue.starts(s_.ideal(r), kShare * forecast_.alone(s_.queue[id], r), now);
  start(h, id, now, out);
  s_.queue[id].owed = 0;
  return true;
}

// The first of the lines that it fits. One that cannot meet its deadline expires here when no shorter instance is there
// for it, which might be quicker.
RequestHandle Turns::overdue_for(InstanceId id, TimeNs now, Actions& out) {
  const Instance& x = s_.queue[id];
  RequestHandle best = kNone;
  for (const MultiLevelQueue::Held& held : s_.queue.held(x)) {
    for (std::int32_t level = s_.queue.first_of(held.variant); level <= held.level; ++level) {
      for (RequestHandle at = s_.overdue[level].fifo.head; at != kNone;) {
        const Request& r = s_.requests[at];
        const RequestHandle after = r.next;
        const bool dead = r.deadline <= now;
        if (dead || forecast_.next_on(x, r, now) > r.deadline) {
          if (!dead && s_.queue.home(level) != held.level) break;
          ledger_.expire_one(at, out);
        } else if (r.avoid != id || !s_.queue.another_fits(level, id)) {
          if (best == kNone || r.rank < s_.requests[best].rank) best = at;
          break;
        }
        at = after;
      }
    }
  }
  return best;
}

// While one waits that is no longer than this level, none is idle: O(1) in an overload, O(N) otherwise.
InstanceId Turns::idle_for(std::int32_t level, std::int32_t length, InstanceId avoid, TimeNs now) const {
  const VariantId variant = s_.queue.level(level).variant;
  if (s_.overdue.front(s_.queue.first_of(variant), level) != kNone) return kNone;
  InstanceId best = kNone;
  TimeNs best_finish = kNever;
  for (InstanceId id = 0; id < s_.queue.ids_end(); ++id) {
    const Instance& x = s_.queue[id];
    if (!x.present || x.state != InstanceState::kActive || !x.idles() || !s_.queue.covers(x, level)) continue;
    if (id == avoid && s_.queue.another_fits(level, id)) continue;
    const TimeNs finish = forecast_.next_on(x, variant, length, now);
    if (finish >= best_finish) continue;
    best_finish = finish;
    best = id;
  }
  return best;
}

Admitted Turns::arrive_overdue(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs finish, TimeNs now,
                               Actions& out) {
  const InstanceId idle = idle_for(level, arrival.length, kNone, now);
  const TimeNs at = idle != kNone ? forecast_.next_on(s_.queue[idle], arrival.variant, arrival.length, now)
                                  : std::max(finish, now + s_.overdue.wait(level, now, arrival.deadline - finish));
  if (at > arrival.deadline) return {Admission::kTooLate, kNone, at - now};
  const bool full = s_.queued_of[arrival.variant] >= s_.options.max_queued;
  if (idle == kNone && full && !arrival.follows) return {Admission::kFull, kNone};
  const RequestHandle h = ledger_.admit_overdue(tag, arrival);
  return {place_overdue(h, level, now, out), h};
}

Admitted Turns::arrive_bulk(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) {
  const std::int32_t queued = s_.queued_of[arrival.variant];
  if (queued > 0 && queued >= s_.options.max_queued / 2 && !arrival.follows) return {Admission::kFull, kNone};
  return arrive_overdue(tag, arrival, level, now, now, out);
}

Admission Turns::place_overdue(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) {
  ledger_.make_overdue(h);
  const Request& r = s_.requests[h];
  const InstanceId idle = s_.held ? kNone : idle_for(level, r.length, r.avoid, now);
  if (idle == kNone) {
    ledger_.wait_overdue(h, level, now);
    return Admission::kQueued;
  }
  ledger_.start_alone(h, idle, now, out);
  ledger_.refresh_key(idle);
  return Admission::kStarted;
}

// Rows that could start now, in batches, were they of the right length.
std::int32_t Turns::rows_with_room(VariantId variant) const {
  std::int64_t rows = 0;
  for (InstanceId id = 0; id < s_.queue.ids_end(); ++id) {
    const Instance& x = s_.queue[id];
    if (!x.present || x.state != InstanceState::kActive || !x.has_room()) continue;
    const MultiLevelQueue::Held* held = s_.queue.find(x, variant);
    if (held == nullptr) continue;
    rows += std::int64_t{x.limit - x.in_flight} * held->bundle.members().back().cost.max_batch();
  }
  return static_cast<std::int32_t>(std::min<std::int64_t>(rows, 1 << 20));
}

bool Turns::make_room(VariantId variant, Actions& out) {
  const std::int32_t first = s_.queue.first_of(variant), end = s_.queue.end_of(variant);
  const std::int32_t& queued = s_.queued_of[variant];
  if (queued - s_.overdue.total(variant) >= s_.options.max_queued) return false;  // it would not be enough
  while (queued >= s_.options.max_queued) ledger_.expire_one(s_.overdue.last(first, end), out);
  return true;
}

}  // namespace arlo::dispatch
