// What eft and late learn about the speed of an instance from the requests it finishes.
#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

class Pace : public testing::TestWithParam<Policy> {
 protected:
  // `times` requests one after another, each on the idle instance that comes first, which takes `took` for it.
  static void run(Rig& rig, InstanceId expected, int times, TimeNs took) {
    for (int i = 0; i < times; ++i) {
      ASSERT_EQ(rig.starts_on(10), expected) << i;
      rig.now += took;
      rig.scheduler.finish(rig.last.handle, Verdict::kAnswered, rig.now, rig.out);
    }
  }
};

TEST_P(Pace, OfIdleInstancesTheSlowOneComesLast) {
  Rig rig(GetParam());
  const InstanceId slow = rig.level(128, 2, 100, 1, 2 * kMs);
  run(rig, slow, 1, 12 * kMs / 5);  // a little late is no proof
  run(rig, slow, 1, 10 * kMs);      // counts as 4 times the profile: a pace of 1.6 now
  run(rig, slow + 1, 30, 2 * kMs);
}

TEST_P(Pace, ASmallDifferenceIsNone) {
  Rig rig(GetParam());
  const InstanceId first = rig.level(128, 2, 100, 1, 100 * kMs);
  run(rig, first, 50, 108 * kMs);
}

TEST_P(Pace, AHiccupIsForgotten) {
  Rig rig(GetParam());
  const InstanceId first = rig.level(128, 1, 100, 1, 2 * kMs);
  const InstanceId high = rig.level(512, 1, 100, 1, 3 * kMs);
  run(rig, first, 1, 1000 * kMs);  // counts as 8 ms: looks as if it took 3.3
  EXPECT_EQ(rig.starts_on(10), high);
  const RequestHandle on_high = rig.last.handle;
  run(rig, first, 40, 2 * kMs);  // busy elsewhere, so it is chosen all the same
  rig.now += 1000 * kMs;
  rig.scheduler.finish(on_high, Verdict::kAnswered, rig.now, rig.out);
  EXPECT_EQ(rig.starts_on(10), first);
}

// An error comes back at once: that is not speed.
TEST_P(Pace, WhatIsRetriedTeachesNothing) {
  Rig rig(GetParam());
  const InstanceId first = rig.level(128, 2, 100, 1, 2 * kMs);
  for (int i = 0; i < 20; ++i) {
    const RequestHandle h = rig.arrive(10);
    rig.scheduler.retry(h, first, rig.now, rig.out);  // runs on the other one now
    rig.now += 2 * kMs;
    rig.scheduler.finish(h, Verdict::kAnswered, rig.now, rig.out);
  }
  EXPECT_EQ(rig.starts_on(10), first);
  EXPECT_EQ(rig.starts_on(10), first + 1);
}

// Three rows that end together are one batch of three: 3 ms by the profile, whatever the share of a full one.
TEST_P(Pace, ABatchIsHeldAgainstTheTimeOfItsRows) {
  for (const bool slow : {false, true}) {
    Rig rig(GetParam());
    const RuntimeId runtime =
        rig.scheduler.add_runtime({.max_length = 128, .max_batch = 4, .capacity = 100, .latency = {{128, 1, kMs}}});
    const InstanceId batching = rig.scheduler.join(runtime, 4, 0, rig.out);
    rig.level(512, 3, 100, 1, 7 * kMs / 2);
    for (int round = 0; round < 30; ++round) {
      std::vector<RequestHandle> batch;
      std::vector<RequestHandle> others;
      for (int i = 0; i < 3; ++i) (rig.starts_on(10) == batching ? batch : others).push_back(rig.last.handle);
      const TimeNs begun = rig.now;
      for (const RequestHandle h : batch) {
        if (!slow) rig.scheduler.finish(h, Verdict::kAnswered, begun + 3 * kMs, rig.out);
      }
      for (const RequestHandle h : others) rig.scheduler.finish(h, Verdict::kAnswered, begun + 7 * kMs / 2, rig.out);
      for (const RequestHandle h : batch) {
        if (slow) rig.scheduler.finish(h, Verdict::kAnswered, begun + 12 * kMs, rig.out);
      }
      rig.now = begun + 20 * kMs;
    }
    EXPECT_EQ(rig.starts_on(10) == batching, !slow);
  }
}

// An error comes back at once: that is no speed. A good answer after the same time is.
TEST_P(Pace, OnlyGoodAnswersTeach) {
  for (const Verdict verdict : {Verdict::kFailed, Verdict::kAnswered}) {
    Rig rig(GetParam());
    const InstanceId low = rig.level(128, 1, 100, 1, 8 * kMs);
    const InstanceId high = rig.level(512, 1, 100, 1, 9 * kMs);
    for (int i = 0; i < 30; ++i) {
      const RequestHandle h = rig.arrive(400);  // on `high`, which answers after 1 ms
      rig.now += kMs;
      rig.scheduler.finish(h, verdict, rig.now, rig.out);
    }
    EXPECT_EQ(rig.starts_on(10), verdict == Verdict::kFailed ? low : high);
  }
}

TEST_P(Pace, ANewInstanceWithTheIdOfASlowOneStartsAfresh) {
  Rig rig(GetParam());
  const InstanceId slow = rig.level(128, 1, 100, 1, 2 * kMs);
  run(rig, slow, 20, 8 * kMs);
  EXPECT_TRUE(rig.scheduler.drain(slow, rig.now, rig.out));
  rig.level(512, 1, 100, 1, 5 * kMs);  // takes the id
  const InstanceId high = slow;
  EXPECT_EQ(rig.starts_on(10), high);
  rig.scheduler.finish(rig.last.handle, Verdict::kAnswered, rig.now + 5 * kMs, rig.out);
  rig.now += 5 * kMs;
  EXPECT_EQ(rig.scheduler.join(0, 1, rig.now, rig.out), slow + 1);
  EXPECT_EQ(rig.starts_on(10), slow + 1);  // 2 ms against 5
}

INSTANTIATE_TEST_SUITE_P(Timed, Pace, testing::Values(Policy::kEft, Policy::kLate));

TEST(Late, ABusyInstanceMustBeWorthMoreThanAnIdleOne) {
  for (const bool busy : {false, true}) {
    Rig rig(Policy::kLate);
    rig.level(128, 1, 100, 1, 4 * kMs);
    const InstanceId high = rig.level(512, 1, 100, 2, 5 * kMs);
    if (busy) {
      rig.arrive(400);  // until 5 ms, then 5 ms for the next, and half of that for binding it early
    }
    rig.arrive(10);
    rig.arrive(10);  // 8 ms by waiting, 5 ms on an idle `high`, 10 on a busy one
    EXPECT_EQ(rig.last.admission, busy ? Admission::kQueued : Admission::kStarted);
    rig.look();
    if (!busy) continue;
    rig.arrive(10);  // 12 ms by waiting: 12.5 there
    EXPECT_TRUE(rig.look().empty());
    rig.arrive(10);  // 16 ms
    EXPECT_EQ(rig.starts(), (std::vector<Start>{{2, high}}));
  }
}

}  // namespace
}  // namespace arlo::dispatch
