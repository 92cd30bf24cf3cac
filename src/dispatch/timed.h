// When an instance is expected to be free: the bookkeeping of the policies that weigh execution times (eft, late), and
// of all others while there are requests with a time limit.
//
// The model of a worker is a server that executes its requests one batch after another. A request is charged its
// *share*: the time of a full batch by its rows (CostModel::share), which for max_batch 1 is its own time. The sum of
// the shares, from the moment the worker was last seen to make progress, is when it will be free. A request's own
// finish is that moment plus its time alone. Known imperfections: a batch that runs half full is charged too little
// until its first request finishes; requests sent ahead (in-flight limit above 1) are assumed to run in turn, so a
// worker with several execution slots looks slower than it is.
//
// Pace. Workers differ from their latency profile: a slower GPU, a profile from another machine, the network, several
// execution slots. So each instance has a factor on the profile's times, learned from the requests it finishes: the
// time since it last made progress over the share of the work it finished, each bounded (a hiccup is no pace) and
// fading over the next sixteen or so. Among idle instances the faster ones come first, in steps of 19 %. The rows of a
// batch end together, so those that end within an eighth of the time since the last progress are one batch. It is
// compared with the profile's time for that many rows, and counts when the next batch begins to end. A failed answer
// (Verdict::kFailed) does not count.
//
// An instance that should be free by now and is not (a slow batch, the network, a hung worker) must not look idle.
// When such an instance comes up as the best of its group its estimate is put off: it is expected to stay late for as
// long again as it has been late, then to do the rest of its work. A little late costs little; a hung worker is
// chosen at most about once in each doubling of the time it hangs, and only while nothing better is there.
#pragma once

#include <algorithm>
#include <cmath>

#include "dispatch/multi_level_queue.h"
#include "dispatch/rule.h"

namespace arlo::dispatch::timed {

// Keys hold times in +-2^61 ns of the origin (73 years) and sort idle instances first, by the step of their pace: ties
// among them go to the lower id. `late` sets kFull on instances without room.
inline constexpr Key kIdle = 2 * kUsualPace;  // the largest key of an idle one
inline constexpr Key kOrigin = Key{1} << 62;
inline constexpr Key kFull = Key{1} << 63;

inline Key key_of(const Instance& x) {
  return x.outstanding() == 0 ? Key{x.pace_step} : kOrigin + static_cast<Key>(x.free);
}

// When the instance with this key can begin something new.
inline TimeNs start_of(Key key, TimeNs now) {
  const Key time = key & ~kFull;
  return time <= kIdle ? now : std::max(now, static_cast<TimeNs>(time - kOrigin));
}

// Converts a time of the latency profile to this instance's pace.
inline TimeNs paced(const Instance& x, TimeNs time) {
  // Times are above 0, and llround() is a call. NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return static_cast<TimeNs>(x.pace * static_cast<double>(time) + 0.5);
}

// The instances of the group took that long for `share` of the profile.
inline void learn(Group& group, TimeNs share, TimeNs time) {
  constexpr double kFade = 63.0 / 64.0;
  group.took = kFade * group.took + static_cast<double>(time);
  group.expected = kFade * group.expected + static_cast<double>(share);
}

// The same of the instance.
inline TimeNs learn(Instance& x, TimeNs share, TimeNs time) {
  constexpr double kFade = 15.0 / 16.0;
  constexpr double kFirst = 4;  // the profile counts like so many requests at the start
  constexpr double kMost = 4;   // times the profile, either way
  if (share <= 0) return 0;
  const auto expected = static_cast<double>(share);
  const double took = std::clamp(static_cast<double>(time), expected / kMost, expected * kMost);
  if (x.expected == 0) x.took = x.expected = kFirst * expected;
  x.took = kFade * x.took + took;
  x.expected = kFade * x.expected + expected;
  x.pace = x.took / x.expected;
  const bool usual = x.pace > 0.918 && x.pace < 1.09;  // the same, without the logarithm
  x.pace_step = usual ? kUsualPace : static_cast<std::uint32_t>(kUsualPace + std::lround(4 * std::log2(x.pace)));
  return static_cast<TimeNs>(took);
}

inline void learn(Instance& x, Group& group, TimeNs share, TimeNs time) {
  const TimeNs took = learn(x, share, time);
  if (took > 0) learn(group, share, took);
}

// A request of this length has been answered well. Before progress().
inline void observe(Instance& x, Group& group, const CostModel& cost, std::int32_t length, TimeNs now) {
  if (!cost.batches()) {
    learn(x, group, cost.share(length), now - x.since);
    return;
  }
  if (x.batch_rows > 0 && x.batch_rows < cost.max_batch() && (now - x.batch_ended) * 8 <= x.batch_took) {
    ++x.batch_rows;
    x.batch_longest = std::max(x.batch_longest, length);
    return;
  }
  if (x.batch_rows > 0) learn(x, group, cost.at(x.batch_longest, x.batch_rows), x.batch_took);
  x.batch_rows = 1;
  x.batch_longest = length;
  x.batch_took = now - x.since;
  x.batch_ended = now;
}

// Before the request is counted in x.
inline void add(Instance& x, TimeNs share, TimeNs now) {
  if (x.outstanding() == 0) {
    x.free = now;
    x.first = now;
    x.since = now;
    x.work = 0;
  }
  x.work += share;
  x.free += share;
  x.first += share;
}

// A request that had not started is taken away.
inline void withdraw(Instance& x, TimeNs share) {
  x.work -= share;
  x.free -= share;
  x.first -= share;
}

// A request has finished: the estimate restarts from the present state.
inline void progress(Instance& x, TimeNs share, TimeNs now) {
  x.since = now;
  x.work -= share;
  x.free = now + x.work;
  x.first = x.free;
}

// Returns when an instance would be free that is not the best of its group, and so has not been put off yet.
inline TimeNs free_at(const Instance& x, const RequestSlab& requests, TimeNs now) {
  if (x.outstanding() == 0) return now;
  if (x.free > now) return x.free;
  const TimeNs current = x.started.empty() ? 0 : requests[x.started.head].share;
  return now + std::max<TimeNs>(now - x.first, 1) + (x.work - current);
}

// Returns when it would be free of its started requests alone.
inline TimeNs started_until(const Instance& x, const RequestSlab& requests, TimeNs now) {
  TimeNs until = x.since;
  for (RequestHandle at = x.started.head; at != kNone; at = requests[at].next) until += requests[at].share;
  return std::max(until, now);
}

// Makes the head of a group true: idle, or expected to be free after `now`. A head that should be free by now is put
// off, and the next one.
inline void refresh(MultiLevelQueue& queue, GroupIndex g, const RequestSlab& requests, const Rule& rule, TimeNs now) {
  for (Key key = queue.head(g).key & ~kFull; key > kIdle && key <= kOrigin + static_cast<Key>(now);
       key = queue.head(g).key & ~kFull) {
    const InstanceId id = queue.head(g).id;
    queue[id].free = free_at(queue[id], requests, now);
    queue.update(id, rule.key(queue[id]));
  }
}

}  // namespace arlo::dispatch::timed
