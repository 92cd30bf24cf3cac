// What expected_finish() says against what then happens, with workers that take what their profile says.
#include <cstdint>
#include <map>
#include <queue>
#include <random>
#include <vector>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

// Rows of one length on `instances` workers, one at a time each, at the given load; the mean error of what was told.
void run(Policy policy, double load, std::uint64_t seed) {
  constexpr TimeNs kTime = kMs;
  Scheduler scheduler(Options{.policy = policy, .max_queued = 1 << 20});
  Actions out;
  const RuntimeId runtime = scheduler.add_runtime(static_runtime(64, 1000, kTime));
  constexpr int kInstances = 3;
  for (int i = 0; i < kInstances; ++i) scheduler.join(runtime, 1, 0, out);
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(load * kInstances / static_cast<double>(kTime));
  struct End {
    TimeNs at;
    RequestHandle handle;
    Tag tag;
    bool operator<(const End& other) const { return at > other.at; }
  };
  std::priority_queue<End> ends;
  std::map<Tag, TimeNs> told;
  TimeNs now = 0;
  TimeNs worst = 0;
  const auto settle = [&] {
    for (const Action& a : out) {
      ASSERT_EQ(a.kind, ActionKind::kStart);
      ends.push({now + kTime, a.handle, a.tag});
    }
    out.clear();
  };
  double next = 0;
  for (Tag tag = 0; tag < 4000; ++tag) {
    next += gap(random);
    const auto at = static_cast<TimeNs>(next);
    while (!ends.empty() && ends.top().at <= at) {
      const End end = ends.top();
      ends.pop();
      now = end.at;
      worst = std::max(worst, std::abs(end.at - told[end.tag]));
      scheduler.finish(end.handle, Verdict::kAnswered, now, out);
      settle();
    }
    now = at;
    const Arrival arrival{.length = 64};
    told[tag] = scheduler.expected_finish(arrival, now);
    ASSERT_EQ(scheduler.arrive(tag, arrival, now, out).handle == kNone, false);
    settle();
  }
  // One line for all: a row starts when the first worker is free whose turn has come. What is told shares the work
  // before it evenly, which is at most one row's time off.
  EXPECT_LE(worst, kTime) << policy_name(policy) << " at " << load;
}

TEST(ExpectedFinish, IsWhatThenHappens) {
  for (const double load : {.3, .8, .95}) {
    run(Policy::kLate, load, 1);
    run(Policy::kEft, load, 2);
  }
}

TEST(ExpectedFinish, IsWhatAnArrivalIsHeldAgainst) {
  for (const Policy policy : {Policy::kLate, Policy::kEft, Policy::kRs, Policy::kIlb}) {
    Rig rig(policy);
    rig.level(128, 2, 100, 1, 5 * kMs);
    rig.level(512, 1, 100, 1, 20 * kMs);
    std::mt19937_64 random(3);
    for (int i = 0; i < 60; ++i) {
      const auto length = static_cast<std::int32_t>(1 + random() % 512);
      const TimeNs deadline = rig.now + static_cast<TimeNs>(1 + random() % 80) * kMs;
      const Arrival arrival{.length = length, .deadline = deadline};
      const TimeNs finish = rig.scheduler.expected_finish(arrival, rig.now);
      rig.arrive(length, deadline);
      EXPECT_EQ(rig.last.admission == Admission::kTooLate, finish > deadline) << policy_name(policy) << " " << i;
      if (i % 3 == 0) rig.now += kMs / 2;
    }
  }
}

// Two variants on the same workers: what waits for one is wait for the other, whoever would be served first.
TEST(ExpectedWait, IsOfAllThatWaitsForTheInstances) {
  Scheduler scheduler(Options{.policy = Policy::kLate, .max_queued = 1 << 20, .batching = Batching::kDeadline});
  Actions out;
  const auto runtime = [&](VariantId variant, TimeNs time) {
    return scheduler.add_runtime(
        {.max_length = 64, .max_batch = 1, .capacity = 4, .latency = {{64, 1, time}}, .variant = variant});
  };
  const RuntimeId both = scheduler.add_bundle({runtime(0, 10 * kMs), runtime(1, 40 * kMs)});
  EXPECT_EQ(scheduler.expected_wait(64, 0, 0), kNever);
  scheduler.join(both, 1, 0, out);
  scheduler.join(both, 1, 0, out);
  EXPECT_EQ(scheduler.expected_wait(64, 0, 0), 0);
  EXPECT_EQ(scheduler.expected_wait(65, 0, 0), kNever);
  for (Tag tag = 0; tag < 22; ++tag) scheduler.arrive(tag, {.length = 64, .due = 1000 * kMs}, 0, out);
  // Two run, and 20 wait for two instances.
  EXPECT_EQ(scheduler.expected_wait(64, 0, 0), (10 + 20 * 10 / 2) * kMs);
  EXPECT_EQ(scheduler.expected_wait(64, 1, 0), scheduler.expected_wait(64, 0, 0));
  // Where it would be served by its share of the time, it would finish sooner.
  EXPECT_LT(scheduler.expected_finish({.length = 64, .variant = 1}, 0), scheduler.expected_wait(64, 1, 0) + 40 * kMs);
}

TEST(ExpectedWait, IsOfItsOwnInstancesWhereNoneIsShared) {
  for (const Policy policy : {Policy::kLate, Policy::kEft}) {
    Scheduler scheduler(Options{.policy = policy, .max_queued = 1 << 20});
    Actions out;
    for (VariantId v = 0; v < 2; ++v) {
      RuntimeSpec spec = static_runtime(64, 1000, 10 * kMs);
      spec.variant = v;
      scheduler.join(scheduler.add_runtime(spec), 1, 0, out);
    }
    for (Tag tag = 0; tag < 5; ++tag) scheduler.arrive(tag, {.length = 64}, 0, out);
    EXPECT_EQ(scheduler.expected_wait(64, 0, 0), 50 * kMs) << policy_name(policy);
    EXPECT_EQ(scheduler.expected_wait(64, 1, 0), 0) << policy_name(policy);
  }
}

TEST(ExpectedFinish, IsNeverWhereNothingFits) {
  Rig rig(Policy::kLate);
  EXPECT_EQ(rig.scheduler.expected_finish({.length = 10}, 0), kNever);
  const InstanceId id = rig.level(128);
  EXPECT_EQ(rig.scheduler.expected_finish({.length = 200}, 0), kNever);
  EXPECT_EQ(rig.scheduler.expected_finish({.length = 10}, 0), kMs);
  EXPECT_EQ(rig.scheduler.active_of(0), 1);
  EXPECT_EQ(rig.scheduler.active_of(7), 0);
  rig.scheduler.leave(id, 0, rig.out);
  EXPECT_EQ(rig.scheduler.expected_finish({.length = 10}, 0), kNever);
}

// In batches as bulk rows form them, on all instances, and behind what runs and waits for any variant of these.
TEST(Forecast, CountsBatchesInstancesAndWhatWaits) {
  Scheduler scheduler(Options{.policy = Policy::kLate, .max_queued = 1 << 20, .batching = Batching::kDeadline});
  Actions out;
  for (VariantId v = 0; v < 2; ++v) {
    scheduler.add_runtime({.max_length = 64,
                           .max_batch = 8,
                           .capacity = 1000,
                           .latency = {{64, 1, 2 * kMs}, {64, 8, 8 * kMs}},
                           .variant = v});
  }
  const RuntimeId both = scheduler.add_bundle({0, 1});
  for (int i = 0; i < 2; ++i) scheduler.join(both, 1, 0, out);
  const std::vector<std::int32_t> rows(160, 64);
  const RowsForecast idle = scheduler.forecast(rows, 0, 0);
  EXPECT_EQ(idle.alone, 80 * kMs);
  EXPECT_EQ(idle.behind, 82 * kMs);  // and one row that is the last
  scheduler.hold();
  for (Tag tag = 0; tag < 80; ++tag) scheduler.arrive(tag, {.length = 64, .bulk = true, .variant = 1}, 0, out);
  const RowsForecast behind = scheduler.forecast(rows, 0, 0);
  EXPECT_EQ(behind.alone, 80 * kMs);
  EXPECT_EQ(behind.behind, 122 * kMs);
  scheduler.release(0, out);
  EXPECT_EQ(scheduler.forecast(rows, 0, 0).behind, 122 * kMs);
  EXPECT_EQ(scheduler.forecast(std::vector<std::int32_t>{1, 65}, 0, 0).alone, kNever);
}

}  // namespace
}  // namespace arlo::dispatch
