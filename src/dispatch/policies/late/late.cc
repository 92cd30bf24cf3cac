// late: late binding (ours).
//
// A request waits in the gateway, in the FIFO of its ideal level, and is bound when it starts. Its *home* is the
// shortest level that fits and has active instances. Both rules compare the same two instants:
//
// - A home with room starts its first request at once, on the instance where it is expected to finish first. A home
//   without room lets its first request start on a longer level that has room when it is expected to finish there no
//   later than the *last* request of that home would by waiting: when the first one leaves, each behind it moves up, so
//   what the move saves is the wait of the last.
// - An instance that gets room serves its own home first, in order of admission, unless a lower home is clearly
//   further behind. With nothing waiting at its own home it takes the first request of the lower home where the same
//   comparison gains most; with requests waiting there, the request taken must gain more than 1.5 times the work
//   that waits there for each instance, and 3 times the time of one request.
//
// Why the second rule. In an overload every home has a line and every instance is busy: the order of requests does not
// change how many are done, but it changes each line's wait. If instances serve only their own line, the lines drift
// apart, and the longest line is the tail of the latencies. Always serving the line that is furthest behind, which is
// what `eft` comes to, wastes the longer runtimes on small differences, and the mean suffers. A lag beyond the SLO
// (capacity M times a request's share, by Eq. 3) counts an eighth: those requests are late in any case, and the longer
// ones need not be.
//
// No row starves. However far another line is behind, an instance passes its own line over kMostPassed times in a row
// at most, and not at all when the first of it could not be on time after one turn more. So a request with n before it
// in the lines of its home starts within (n + 1) * (kMostPassed + 1) turns of the home's instances, or has become
// overdue.
//
// The wait at home is: the first instance to be free, then the work of those ahead shared by the home's instances.
// Taking from the front keeps each FIFO in order; a longer request never waits behind a demoted one that has not
// started, which is what `rs` guards against with its thresholds.
//
// Where instances hold several variants, each has its homes and lines, and all of the above applies within a variant.
// Among the rows that are next in their variants the one due first goes, within the variants' shares (shares.h). Rows
// of other variants that are due before a row count as its wait, up to their shares.
//
// `deadline` batching compares the worth of batches at both places, not the order of rows. Among the lines of a bundle
// the fullest batch goes first; among several variants, the one whose rows cost least, weighted by the square of the
// time that its first row has left. A batch due within two full batches of the longest goes before these. (By cost
// alone, a free instance would always take one short row that has just come, and long rows would wait until they are
// nearly late.)
//
// Where the in-flight limit is above 1, a busy instance may also have room. A request is demoted to it only for a gain
// larger by half of its time there, since it is bound before the next arrivals for that level are known.
//
// A decision is made when something happens (arrive, finish, join, leave, drain, retry, expire), not in between. A home
// that falls behind its estimate while nothing happens at all keeps its requests until the next event; expire() looks
// at all homes again, so a caller that calls it now and then bounds that.
#include "dispatch/policies/late/late.h"

#include <algorithm>
#include <utility>

#include "dispatch/policies/late/late_binding.h"

#include "dispatch/timed.h"

namespace arlo::dispatch {
namespace {

// A line is left for a lower one that gains more than kWorthHalves / 2 times its own work for each instance and kSlack
// times the time of one request.
constexpr TimeNs kWorthHalves = 3;
constexpr TimeNs kSlack = 3;
// Turns in a row that an instance takes from another line while its own waits.
constexpr std::int32_t kMostPassed = 3;
// One part in so many of a line's lag beyond the SLO counts.
constexpr TimeNs kLateCounts = 8;
// The part of the SLO by which a variant may be ahead of another one that waits for the same instances.
constexpr TimeNs kLead = 8;
// Full batches of the longest runtime, within which due rows go first.
constexpr TimeNs kHurry = 2;

// The price of demoting a request to an instance that is still busy (in-flight limit above 1): it is bound before the
// next arrivals for that level are known. Half of the request's time there.
TimeNs sent_ahead(const Instance& x, TimeNs alone) { return x.outstanding() == 0 ? 0 : alone / 2; }

// How far a variant may be ahead of a waiting one on the same instance.
TimeNs lead(const MultiLevelQueue& queue, const Held& waits) {
  const TimeNs slo = waits.capacity * waits.bundle.share(waits.bundle.longest());
  return slo / kLead * queue.with(waits.variant);
}

// The number of a line's rows that go before one that wants to end by `limit`, interpolated between its ends.
std::int32_t due_before(const RequestSlab& requests, const LevelFifos::Line& line, TimeNs limit) {
  if (line.count == 0) return 0;
  const TimeNs first = requests[line.fifo.head].limit();
  const TimeNs last = requests[line.fifo.tail].limit();
  if (limit >= last) return line.count;
  if (limit <= first) return 0;
  if (last == kNever) return line.count;
  const double part = static_cast<double>(limit - first) / static_cast<double>(last - first);
  return static_cast<std::int32_t>(part * line.count);
}

// The work of a variant's lines, or of their rows that want to end by `limit`, for all instances together.
TimeNs work_of(const State& s, VariantId variant, TimeNs limit) {
  TimeNs work = 0;
  for (std::int32_t level = s.queue.first_of(variant); level < s.queue.end_of(variant); ++level) {
    const std::int32_t rows = due_before(s.requests, s.lines[level], limit);
    if (rows == 0) continue;
    const GroupIndex g = s.queue.first_fitting(level);
    if (g == s.queue.groups()) continue;
    work += s.queue.group(g).paced(rows * s.queue.group_cost(g).share(s.lines[level].mean()));
  }
  return work;
}

Backlog backlog(const State& s, std::int32_t first, std::int32_t home) {
  const VariantId variant = s.queue.level(home).variant;
  if (first == s.queue.first_of(variant) && home + 1 == s.queue.end_of(variant)) {
    return {first, home, s.lines.total(variant), s.lines.tokens(variant)};
  }
  Backlog waiting{first, home, 0, 0};
  for (std::int32_t level = first; level <= home; ++level) {
    waiting.count += s.lines[level].count;
    waiting.tokens += s.lines[level].tokens;
  }
  return waiting;
}

// The first of a backlog by rank that does not keep off this instance, where there is another one.
RequestHandle front_for(const State& s, const Backlog& waiting, InstanceId id) {
  RequestHandle best = kNone;
  for (std::int32_t level = waiting.first; level <= waiting.home; ++level) {
    RequestHandle at = s.lines[level].fifo.head;
    while (at != kNone && s.requests[at].avoid == id && s.queue.another_fits(level, id)) at = s.requests[at].next;
    if (at != kNone && (best == kNone || s.requests[at].rank < s.requests[best].rank)) best = at;
  }
  return best;
}

}  // namespace

Key Late::key(const Instance& x) const { return timed::key_of(x) | (x.has_room() ? 0 : timed::kFull); }

// The best instance of each group of a home, and when it can begin something new.
template <typename Look>
void Late::look_at_home(std::int32_t home, TimeNs now, Look look) const {
  for (GroupIndex g = s_.queue.first_fitting(home); g != s_.queue.groups() && s_.queue.group(g).level == home;
       g = s_.queue.next_fitting(g)) {
    timed::refresh(s_.queue, g, s_.requests, *this, now);
    const IndexedHeap::Entry head = s_.queue.head(g);
    look(s_.queue.group_cost(g), s_.queue[head.id], timed::start_of(head.key, now));
  }
}

TimeNs Late::finish_of_turn(std::int32_t home, std::int32_t length, std::int32_t in_line, TimeNs now) const {
  const std::int32_t in_all = s_.lines.total(s_.queue.level(home).variant);
  TimeNs best = kNever;
  look_at_home(home, now, [&](const Bundle& cost, const Instance& x, TimeNs start) {
    const TimeNs time = cost.at(length, s_.batching() ? cost.turn_rows(length, in_line, in_all) : 1);
    best = std::min(best, start + timed::paced(x, time));
  });
  return best;
}

TimeNs Late::finish_at_home(const Backlog& waiting, std::int32_t length, TimeNs now) const {
  TimeNs best = kNever;
  look_at_home(waiting.home, now, [&](const Bundle& cost, const Instance& x, TimeNs start) {
    const std::int32_t together = s_.batching() ? cost.turn_rows(length, waiting.count, waiting.count) : 1;
    TimeNs finish = start + timed::paced(x, cost.at(length, together));
    if (waiting.count > together) {
      finish += (waiting.count - together) * cost.share(waiting.mean()) / s_.queue.active_in(waiting.home);
    }
    best = std::min(best, finish);
  });
  return best;
}

GroupIndex Late::pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t length, TimeNs now) {
  const GroupIndex end = queue.groups();
  const GroupIndex first = queue.first_fitting(level);
  if (first == end) return end;
  const std::int32_t home = queue.group(first).level;
  GroupIndex best = end;
  TimeNs best_finish = kNever;
  bool room_at_home = false;
  for (GroupIndex g = first; g != end; g = queue.next_fitting(g)) {
    timed::refresh(queue, g, s_.requests, *this, now);
    const Key key = queue.head(g).key;
    if ((key & timed::kFull) != 0) continue;
    const bool at_home = queue.group(g).level == home;
    room_at_home = room_at_home || at_home;
    const Instance& x = queue[queue.head(g).id];
    const TimeNs alone = timed::paced(x, queue.group_cost(g).alone(length));
    const TimeNs finish = timed::start_of(key, now) + alone + (at_home ? 0 : sent_ahead(x, alone));
    if (finish < best_finish || (finish == best_finish && queue.group(g).level == queue.group(best).level &&
                                 queue.head(g).id < queue.head(best).id)) {
      best_finish = finish;
      best = g;
    }
  }
  if (best == end || room_at_home) return best;
  return best_finish <= finish_at_home(backlog(s_, queue.lowest_at(home), home), length, now) ? best : end;
}

TimeNs Late::finish_in_line(std::int32_t home, std::int32_t length, Rank rank, TimeNs limit, TimeNs now) const {
  TimeNs best = kNever;
  TimeNs work = 0;  // of what waits before it, for all instances up to this home together
  std::int32_t instances = 0;
  const std::int32_t own = home;
  const VariantId variant = s_.queue.level(home).variant;
  const std::int32_t end = s_.queue.end_of(variant);
  std::int32_t first = s_.queue.lowest_at(home);
  while (home < s_.queue.levels() && best > limit) {
    Backlog waiting = backlog(s_, first, home);
    for (std::int32_t level = first; home == own && level <= home; ++level) {
      const LevelFifos::Behind behind = s_.lines.behind(s_.requests, level, rank);
      waiting.count -= behind.count;
      waiting.tokens -= behind.tokens;
    }
    const GroupIndex g = s_.queue.first_fitting(home);
    if (waiting.count > 0) {
      work += s_.queue.group(g).paced(waiting.count * s_.queue.group_cost(g).share(waiting.mean()));
    }
    instances += s_.queue.active_in(home);
    TimeNs wait = work / instances;
    if (s_.queue.mixed(variant) > 0) {
      wait += others_before(home, work + s_.queue.group_cost(g).share(length), limit);
    }
    best = std::min(best, finish_of_turn(home, length, waiting.count + 1, now) + wait);
    first = home + 1;
    home = first == end ? s_.queue.levels() : s_.queue.home(first);
  }
  return best;
}

RequestHandle Late::next_for(InstanceId id, TimeNs now) const {
  if (s_.lines.total() == 0) return kNone;
  Instance& x = s_.queue[id];
  const auto held = s_.queue.held(x);
  Turn turn;
  if (held.size() == 1) {
    turn = turn_of(held.front(), id, now);
  } else {
    std::array<Turn, kVariants> turns;
    for (std::size_t i = 0; i < held.size(); ++i) turns[i] = turn_of(held[i], id, now);
    turn = turns[first_of(x, turns, now)];
  }
  x.passed = turn.passed;
  return turn.next;
}

Late::Order Late::by_worth(const Instance& x, const Held& held, RequestHandle next, Cost by, TimeNs now) const {
  const Request& r = s_.requests[next];
  const CostModel& cost = held.bundle.of(r.length).cost;
  const std::int32_t rows = std::clamp(s_.lines[s_.queue.ideal(r.variant(), r.length)].count, 1, cost.saturated());
  const TimeNs time = cost.at(r.length, rows);
  double price = static_cast<double>(time) / rows;
  if (by == Cost::kUnfilled) price /= static_cast<double>(cost.share(r.length));
  if (r.limit() == kNever) return {true, price, r.rank};
  const TimeNs spare = r.limit() - timed::start_of(timed::key_of(x), now) - timed::paced(x, time);
  const CostModel& longest = held.bundle.members().back().cost;
  if (spare < kHurry * timed::paced(x, longest.at(longest.max_length(), longest.saturated()))) {
    return {false, static_cast<double>(r.limit()), r.rank};
  }
  const TimeNs slo = held.capacity * held.bundle.share(held.bundle.longest());
  const double left = static_cast<double>(spare) / static_cast<double>(slo);
  return {true, price * left * left, r.rank};
}

RequestHandle Late::front_by_worth(const Held& held, std::int32_t lowest, InstanceId id, TimeNs now) const {
  RequestHandle oldest = kNone;
  RequestHandle best = kNone;
  Order first;
  for (std::int32_t level = lowest; level <= held.level; ++level) {
    if (s_.lines[level].count == 0) continue;
    const RequestHandle next = front_for(s_, {level, level, 0, 0}, id);
    if (next == kNone) continue;
    const Order order = by_worth(s_.queue[id], held, next, Cost::kUnfilled, now);
    if (best == kNone || order < first) {
      best = next;
      first = order;
    }
    if (oldest == kNone || s_.requests[next].rank < s_.requests[oldest].rank) oldest = next;
  }
  if (oldest == kNone) return kNone;
  // Retried requests go before all others; one without a time limit could be passed over for ever.
  const Request& r = s_.requests[oldest];
  return r.rank < kFirstTry || r.limit() == kNever ? oldest : best;
}

std::size_t Late::first_of(const Instance& x, const std::array<Turn, kVariants>& turns, TimeNs now) const {
  const auto held = s_.queue.held(x);
  TimeNs most = kNever;  // that one may have got
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (turns[i].next == kNone) continue;
    most = std::min(most, s_.shares.got(held[i].variant) + lead(s_.queue, held[i]));
  }
  std::size_t best = held.size();
  Order first;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (turns[i].next == kNone || s_.shares.got(held[i].variant) > most) continue;
    const Request& r = s_.requests[turns[i].next];
    const Order order = worth_decides() ? by_worth(x, held[i], turns[i].next, Cost::kTime, now)
                                        : Order{false, static_cast<double>(r.limit()), r.rank};
    if (best == held.size() || order < first) {
      best = i;
      first = order;
    }
  }
  return best == held.size() ? 0 : best;
}

TimeNs Late::wait_of_all(std::int32_t home, TimeNs now) const {
  const VariantId variant = s_.queue.level(home).variant;
  TimeNs free = kNever;
  look_at_home(home, now, [&](const Bundle&, const Instance&, TimeNs start) { free = std::min(free, start); });
  const std::int32_t instances = s_.queue.with(variant);
  double work = 0;
  for (VariantId other = 0; other < s_.queue.variants(); ++other) {
    const std::int32_t both = s_.queue.with(variant, other);
    if (both == 0 || s_.lines.total(other) == 0) continue;
    // Of what waits for a variant, the part that these instances do.
    work += static_cast<double>(work_of(s_, other, kNever)) * both / s_.queue.with(other);
  }
  return free - now + static_cast<TimeNs>(work / instances);
}

TimeNs Late::others_before(std::int32_t home, TimeNs own, TimeNs limit) const {
  const VariantId variant = s_.queue.level(home).variant;
  const Held& held = s_.queue.group_held(s_.queue.first_fitting(home));
  TimeNs wait = 0;
  for (VariantId other = 0; other < s_.queue.variants(); ++other) {
    if (other == variant || s_.queue.with(variant, other) == 0) continue;
    TimeNs work = work_of(s_, other, limit);
    if (work == 0) continue;
    work = std::min(work, s_.shares.before(other, variant, s_.lines.total(variant) > 0, own, lead(s_.queue, held)));
    wait += work / std::max(s_.queue.with(other), s_.queue.with(variant));
  }
  return wait;
}

Late::Turn Late::turn_of(const Held& held, InstanceId id, TimeNs now) const {
  const Instance& x = s_.queue[id];
  const std::int32_t shortest = s_.queue.first_of(held.variant);
  const std::int32_t lowest = s_.queue.lowest_at(held.level);
  const RequestHandle own = worth_decides() && held.bundle.members().size() > 1
                                ? front_by_worth(held, lowest, id, now)
                                : front_for(s_, {lowest, held.level, 0, 0}, id);
  if (own != kNone && lowest == shortest) return {own, x.passed};

  const Bundle& cost = held.bundle;
  TimeNs behind = 0;  // the gain at which it takes a request of a lower home before its own line
  if (own != kNone) {
    const Backlog waiting = backlog(s_, lowest, held.level);
    const TimeNs each = waiting.count * cost.share(waiting.mean()) / s_.queue.active_in(waiting.home);
    behind = kWorthHalves * each / 2 + kSlack * cost.alone(s_.requests[own].length);
  }
  const TimeNs start = timed::start_of(timed::key_of(x), now);
  if (own != kNone) {
    const TimeNs turn = timed::paced(x, cost.alone(s_.requests[own].length));
    const TimeNs aim = s_.requests[own].aim;
    if (x.passed >= kMostPassed || (aim != kNever && start + 2 * turn > aim)) return {own, 0};
  }
  const auto finish_here = [&](std::int32_t length) {
    const TimeNs alone = timed::paced(x, cost.alone(length));
    return start + alone + sent_ahead(x, alone);
  };
  RequestHandle best = own;
  TimeNs best_gain = behind - 1;
  std::int32_t next = 0;
  for (std::int32_t first = shortest; first < lowest; first = next) {
    const std::int32_t home = s_.queue.home(first);
    next = home + 1;
    const Backlog waiting = backlog(s_, first, home);
    if (waiting.count == 0) continue;
    const RequestHandle handle = front_for(s_, waiting, id);
    if (handle == kNone) continue;
    const std::int32_t length = s_.requests[handle].length;
    const bool kept_off =
        s_.queue.active_in(home) == 1 && s_.queue.head(s_.queue.first_fitting(home)).id == s_.requests[handle].avoid;
    if (kept_off && own == kNone) return {handle, x.passed};  // nothing at its home will take it
    if (start + timed::paced(x, cost.alone(length)) > s_.requests[handle].limit()) continue;
    TimeNs there = finish_at_home(waiting, length, now);
    const TimeNs slo = now + held.capacity * cost.share(length);
    if (own != kNone && there > slo) there = slo + (there - slo) / kLateCounts;
    const TimeNs gain = there - finish_here(length);
    if (gain > best_gain) {
      best_gain = gain;
      best = handle;
    }
  }
  return {best, own != kNone && best != own ? x.passed + 1 : 0};
}

std::unique_ptr<Binding> Late::make_binding(const Parts& parts) { return std::make_unique<LateBinding>(parts, *this); }

std::unique_ptr<Rule> make_late(State& state) { return std::make_unique<Late>(state); }

}  // namespace arlo::dispatch
