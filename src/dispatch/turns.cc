#include "dispatch/turns.h"

#include <algorithm>

#include "dispatch/timed.h"

namespace arlo::dispatch {

namespace {

// The times that batches of a line's variants take on an instance; `held`: the runtimes it holds of each.
class TimesOn final : public BatchTimes {
 public:
  TimesOn(const Instance& x, const std::vector<const Held*>& held) : x_(x), held_(held) {}

  [[nodiscard]] const Bundle::Member* on(std::size_t variant, std::int32_t length) const {
    const Held* held = held_[variant];
    return held == nullptr || held->bundle.longest() < length ? nullptr : &held->bundle.of(length);
  }
  [[nodiscard]] TimeNs of(std::size_t variant, std::int32_t length, std::int64_t rows) const override {
    const Bundle::Member* member = on(variant, length);
    if (member == nullptr) return kNever;
    return timed::paced(x_,
                        member->cost.at(length, static_cast<std::int32_t>(std::min<std::int64_t>(rows, kMaxBatch))));
  }

 private:
  const Instance& x_;
  const std::vector<const Held*>& held_;
};

}  // namespace

void Turns::serve(InstanceId id, TimeNs now, Actions& out) {
  Instance& x = s_.queue[id];
  while (x.has_room()) {
    const bool owes = s_.any_overdue(x) && x.owed >= kShare - 1 && x.state == InstanceState::kActive;
    if (owes && start_overdue(id, now, out)) continue;
    const RequestHandle h = next(id, now, out);
    if (h != kNone && start(h, id, now, out)) continue;
    const bool idles = s_.any_overdue(x) && x.idles() && x.state == InstanceState::kActive;
    if (!idles || !start_overdue(id, now, out)) break;
  }
  if (x.state == InstanceState::kActive) {
    ledger_.refresh_key(id);
  } else if (x.outstanding() == 0) {
    s_.queue.remove_instance(id);
  }
}

bool Turns::start(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
  const Request& r = s_.requests[h];
  const Instance& x = s_.queue[id];
  VariantId as = r.variant();
  choice_.rows.clear();
  choice_.evicted.clear();
  if (s_.chosen_late(r)) {
    as = choose_of(*s_.bodies.of(as), h, id, now);
    for (const RequestHandle evicted : choice_.evicted) evict(evicted, id, now, out);
    if (choice_.rows.empty()) return false;
  } else if (s_.batching()) {
    by_deadline_.choose({.instance = id, .first = h, .start = start_on(x, now)}, choice_);
  } else {
    choice_.rows.push_back(h);
    choice_.runtime = &s_.cost(x, r).of(r.length);
  }
  ledger_.start_waiting(choice_.rows, id, *choice_.runtime, as, now, out);
  return true;
}

// Returns the variant that executes the chosen rows.
VariantId Turns::choose_of(const Body& body, RequestHandle first, InstanceId id, TimeNs now) {
  const Instance& x = s_.queue[id];
  held_.clear();
  for (const VariantId v : body.variants) held_.push_back(s_.queue.find(x, v));
  const TimesOn times(x, held_);
  choice_.variant = 0;
  body.chooser->choose({.instance = id,
                        .first = first,
                        .start = start_on(x, now),
                        .instances = std::max(s_.queue.with(body.variants.front()), 1),
                        .times = &times},
                       choice_);
  if (!choice_.rows.empty()) choice_.runtime = times.on(choice_.variant, choice_.longest);
  return body.variants[choice_.variant];
}

// A request that may still be answered after its limit yields from now on.
void Turns::evict(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
  Request& r = s_.requests[h];
  r.evicted = true;
  if (r.deadline <= r.limit()) {
    ledger_.expire_one(h, out);
  } else {
    pass(h, id, now, out);
  }
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
    if (x.state != InstanceState::kActive || r.limit() == kNever || s_.chosen_late(r)) return h;
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

// Returns the first of the lines that it fits. A request that cannot meet its deadline expires here unless there is a
// shorter instance, which might be faster.
RequestHandle Turns::overdue_for(InstanceId id, TimeNs now, Actions& out) {
  const Instance& x = s_.queue[id];
  RequestHandle best = kNone;
  for (const Held& held : s_.queue.held(x)) {
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
    const Held* held = s_.queue.find(x, variant);
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
