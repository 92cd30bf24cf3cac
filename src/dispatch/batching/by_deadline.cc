#include "dispatch/batching/by_deadline.h"

#include <algorithm>

#include "dispatch/forecast.h"
#include "dispatch/timed.h"

namespace arlo::dispatch {

void ByDeadline::choose(const Turn& turn, BatchChoice& choice) {
  const Request& r = s_.requests[turn.first];
  const Instance& x = s_.queue[turn.instance];
  const Held& held = s_.queue.held(x, r.variant());
  const Bundle& bundle = held.bundle;
  const bool in_line = !r.overdue && r.instance == kNone && r.trial == 0;
  const Bundle::Member& on = in_line ? runtime_for(r, bundle, x, turn.start) : bundle.of(r.length);
  const std::int32_t most = r.trial == 0 ? kMaxBatch : 1 << (r.trial - 1);
  Batch batch{.id = turn.instance,
              .on = &on,
              .most = std::min(on.cost.saturated(), most),
              .variant = r.variant(),
              .trial = r.trial,
              .start = turn.start,
              .limit = limit(r),
              .longest = r.length,
              .time = on.cost.at(r.length, 1)};
  choice.runtime = &on;
  choice.rows.push_back(turn.first);
  if (r.overdue) {
    const TimeNs slo = held.capacity * bundle.share(bundle.longest());
    batch.limit = std::min(batch.limit, turn.start + std::max(timed::paced(x, batch.time), slo / kPatience));
    from(s_.overdue[s_.ideal(r)].fifo, batch, choice.rows);
  } else if (r.instance != kNone) {
    from(x.waiting, batch, choice.rows);
  } else {
    from_lines(batch, choice.rows);
  }
}

std::int32_t ByDeadline::waiting_for(const Bundle::Member& member, const Bundle& bundle, VariantId variant) const {
  std::int32_t waiting = 0;
  const std::int32_t first = s_.queue.first_of(variant);
  for (std::int32_t level = s_.queue.ideal(variant, member.cost.max_length()); level >= first; --level) {
    if (own(level, bundle, member.runtime)) waiting += s_.lines[level].count;
  }
  return waiting;
}

const Bundle::Member& ByDeadline::runtime_for(const Request& first, const Bundle& bundle, const Instance& x,
                                              TimeNs start) const {
  const Bundle::Member* best = &bundle.of(first.length);
  if (bundle.members().size() == 1 || s_.lines.total(first.variant()) == 1) return *best;
  std::int32_t rows = waiting_for(*best, bundle, first.variant());
  if (rows >= best->cost.saturated()) return *best;
  TimeNs time = best->cost.at(first.length, rows);
  for (const Bundle::Member& longer : bundle.members()) {
    if (longer.cost.max_length() <= best->cost.max_length()) continue;
    const std::int32_t more = waiting_for(longer, bundle, first.variant());
    if (more == 0 || rows + more > longer.cost.saturated()) continue;
    const TimeNs both = longer.cost.at(longer.cost.max_length(), rows + more);
    if (both > time + longer.cost.at(longer.cost.max_length(), more) || start + timed::paced(x, both) > limit(first)) {
      continue;
    }
    best = &longer;
    rows += more;
    time = both;
  }
  return *best;
}

// Returns the time by which the batch has to end for this row. An overdue row only asks for an answer.
TimeNs ByDeadline::limit(const Request& r) const {
  return s_.options.batching == Batching::kDeadline && !r.overdue ? r.limit() : r.deadline;
}

void ByDeadline::from_lines(Batch& batch, std::vector<RequestHandle>& rows) {
  const Bundle& bundle = s_.queue.cost(s_.queue[batch.id], batch.variant);
  const RuntimeId runtime = batch.on->runtime;
  const std::int32_t top = s_.queue.ideal(batch.variant, batch.on->cost.max_length());
  const std::int32_t first = s_.queue.first_of(batch.variant);
  // Its own lines in the order of their requests.
  fronts_.clear();
  for (std::int32_t level = top; level >= first; --level) {
    if (own(level, bundle, runtime)) fronts_.push_back(s_.lines[level].fifo.head);
  }
  if (fronts_.size() == 1) {
    if (!from(s_.lines[top].fifo, batch, rows)) return;
  } else {
    for (;;) {
      auto next = fronts_.end();
      for (auto at = fronts_.begin(); at != fronts_.end(); ++at) {
        if (*at != kNone && (next == fronts_.end() || s_.requests[*at].rank < s_.requests[*next].rank)) next = at;
      }
      if (next == fronts_.end()) break;
      const RequestHandle h = *next;
      *next = s_.requests[h].next;
      if (take(h, batch, rows) == Fit::kFull) return;
    }
  }
  for (std::int32_t level = top - 1; level >= first; --level) {
    if (!own(level, bundle, runtime) && !from(s_.lines[level].fifo, batch, rows)) return;
  }
}

bool ByDeadline::from(const Fifo& fifo, Batch& batch, std::vector<RequestHandle>& rows) const {
  constexpr int kPassed = 64;  // of those that cannot go along, before the rest is left alone
  int passed = 0;
  for (RequestHandle h = fifo.head; h != kNone && passed < kPassed; h = s_.requests[h].next) {
    const Fit fit = take(h, batch, rows);
    // Rows of a line cost the same, and those of the lines below cost less. The rows bound to an instance are mixed.
    if (fit == Fit::kFull || (fit == Fit::kNoGain && s_.requests[h].instance == kNone)) return false;
    passed += fit == Fit::kTaken ? 0 : 1;
  }
  return true;
}

ByDeadline::Fit ByDeadline::take(RequestHandle h, Batch& batch, std::vector<RequestHandle>& rows) const {
  const CostModel& cost = batch.on->cost;
  const auto many = static_cast<std::int32_t>(rows.size()) + 1;
  if (many > batch.most) return Fit::kFull;
  const Request& r = s_.requests[h];
  if (h == rows.front() || r.variant() != batch.variant || r.length > cost.max_length() || r.trial != batch.trial) {
    return Fit::kPassed;
  }
  if (r.avoid == batch.id && s_.queue.another_fits(s_.ideal(r), batch.id)) return Fit::kPassed;
  const Instance& x = s_.queue[batch.id];
  const std::int32_t longest = std::max(batch.longest, r.length);
  const TimeNs time = cost.at(longest, many);
  const TimeNs end = batch.start + timed::paced(x, time);
  if (end > batch.limit) return Fit::kFull;
  if (end > limit(r)) return Fit::kPassed;
  const Bundle::Member& home = s_.cost(x, r).of(r.length);
  if (home.runtime != batch.on->runtime) {
    const std::int32_t there = std::clamp(s_.lines[s_.ideal(r)].count, 1, home.cost.saturated());
    if (time - batch.time > home.cost.at(r.length, there) / there) return Fit::kNoGain;
  }
  batch.limit = std::min(batch.limit, limit(r));
  batch.longest = longest;
  batch.time = time;
  rows.push_back(h);
  return Fit::kTaken;
}

}  // namespace arlo::dispatch
