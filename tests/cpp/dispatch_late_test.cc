// Late binding: who starts where, and who waits.
#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

using Starts = std::vector<Start>;

// 2 ms at level 128, 5 ms at level 512, one instance each.
struct TwoLevels : Rig {
  explicit TwoLevels(Options options = {.policy = Policy::kLate}) : Rig(options) {
    low = level(128, 1, 100, 1, 2 * kMs);
    high = level(512, 1, 100, 1, 5 * kMs);
  }
  InstanceId low;
  InstanceId high;
};

TEST(Late, StartsAtHomeWhereThereIsRoom) {
  TwoLevels rig;
  EXPECT_EQ(rig.starts_on(10), rig.low);
  EXPECT_EQ(rig.starts_on(400), rig.high);
}

TEST(Late, WaitsAtHomeWhenThatIsQuicker) {
  TwoLevels rig;
  rig.arrive(10);
  rig.arrive(10);  // 4 ms by waiting, 5 ms above
  EXPECT_EQ(rig.last.admission, Admission::kQueued);
}

TEST(Late, TheFirstInLineMovesUpWhenTheLastWouldWaitLonger) {
  TwoLevels rig;
  rig.arrive(10);
  rig.arrive(10);
  rig.look();
  rig.arrive(10);  // 6 ms by waiting: the one before goes up for it
  EXPECT_EQ(rig.last.admission, Admission::kQueued);
  EXPECT_EQ(rig.starts(), (Starts{{1, rig.high}}));
}

TEST(Late, ARoomyInstanceServesItsHomeFirst) {
  TwoLevels rig;
  rig.arrive(10);
  const RequestHandle on_high = rig.arrive(400);
  for (int i = 0; i < 9; ++i) rig.arrive(10);
  rig.arrive(300);
  rig.look();
  rig.scheduler.finish(on_high, Verdict::kAnswered, 5 * kMs, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{11, rig.high}}));
}

// A lower line that is much further behind goes first: 40 ms against the one request that waits for `high`.
TEST(Late, ALineClearlyFurtherBehindGoesFirst) {
  for (const int waiting : {11, 20}) {
    TwoLevels rig;
    rig.arrive(10);
    const RequestHandle on_high = rig.arrive(400);
    for (int i = 0; i < waiting; ++i) rig.arrive(10);
    rig.arrive(300);
    rig.look();
    // Done here in 5 ms, by waiting in 2 ms for each of them; to be worth it that must be 1.5 * 5 + 3 * 5 ms more.
    rig.scheduler.finish(on_high, Verdict::kAnswered, 0, rig.out);
    const auto own = static_cast<Tag>(waiting) + 2;
    EXPECT_EQ(rig.starts(), (Starts{{waiting == 20 ? Tag{2} : own, rig.high}})) << waiting;
  }
}

TEST(Late, AShorterLineBelowDoesNot) {
  TwoLevels rig;
  rig.arrive(10);
  const RequestHandle on_high = rig.arrive(400);
  for (int i = 0; i < 20; ++i) rig.arrive(10);  // 42 ms
  for (int i = 0; i < 5; ++i) rig.arrive(300);  // 25 ms
  rig.look();
  rig.scheduler.finish(on_high, Verdict::kAnswered, 0, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{22, rig.high}}));
}

// M of 8 and 5 ms: an SLO of 40 ms. The line below is 52 ms behind, which counts as 40 + 12 / 8, 37.3 more than here
// (where the first finish came early, so 4.2 ms are expected); three own requests hold it with 1.5 * 15 + 3 * 5 ms.
TEST(Late, ALineThatIsLateInAnyCaseCountsLittleMoreThanTheSlo) {
  for (const std::int32_t capacity : {100, 8}) {
    Rig rig(Policy::kLate);
    rig.level(128, 1, 100, 1, 2 * kMs);
    const InstanceId high = rig.level(512, 1, capacity, 1, 5 * kMs);
    rig.arrive(10);
    const RequestHandle on_high = rig.arrive(400);
    for (int i = 0; i < 25; ++i) rig.arrive(10);
    for (int i = 0; i < 3; ++i) rig.arrive(300);
    rig.look();
    rig.scheduler.finish(on_high, Verdict::kAnswered, 0, rig.out);
    EXPECT_EQ(rig.starts(), (Starts{{capacity == 8 ? Tag{27} : Tag{2}, high}}));
  }
}

TEST(Late, ThenTakesFromBelowWhereItGainsMost) {
  Rig rig(Policy::kLate);
  rig.level(64, 1, 100, 1, kMs);
  rig.level(128, 1, 100, 1, 2 * kMs);
  const InstanceId high = rig.level(512, 1, 100, 1, 5 * kMs);
  const RequestHandle on_high = rig.arrive(400);
  rig.arrive(10);
  rig.arrive(100);
  for (int i = 0; i < 10; ++i) rig.arrive(10);   // 11 ms of work at level 64
  for (int i = 0; i < 10; ++i) rig.arrive(100);  // 22 ms of work at level 128
  rig.look();
  rig.scheduler.finish(on_high, Verdict::kAnswered, kMs / 2, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{13, high}}));
}

TEST(Late, LeavesAShortLineAlone) {
  TwoLevels rig;
  const RequestHandle on_high = rig.arrive(400);
  rig.arrive(10);
  rig.arrive(10);
  rig.look();
  rig.scheduler.finish(on_high, Verdict::kAnswered, kMs,
                       rig.out);  // the line is done at 4 ms, here it would be at 6 ms
  EXPECT_TRUE(rig.look().empty());
}

TEST(Late, LevelsWithoutInstancesShareAHomeInOrderOfAdmission) {
  Rig rig(Policy::kLate);
  rig.level(128, 0);
  rig.level(256, 0);
  const InstanceId only = rig.level(512);
  RequestHandle running = rig.arrive(400);
  for (const std::int32_t length : {10, 500, 200, 20}) rig.arrive(length);
  rig.look();
  for (Tag tag = 1; tag < 5; ++tag) {
    rig.scheduler.finish(running, Verdict::kAnswered, 0, rig.out);
    ASSERT_EQ(rig.out.size(), 1U);
    running = rig.out[0].handle;
    EXPECT_EQ(rig.starts(), (Starts{{tag, only}}));
  }
}

TEST(Late, WhenItsHomeGoesTheLineMovesToTheNextOne) {
  for (const bool drained : {false, true}) {
    TwoLevels rig;
    rig.arrive(10);
    rig.arrive(10);
    rig.look();
    if (drained) {
      rig.scheduler.drain(rig.low, 0, rig.out);
    } else {
      rig.scheduler.leave(rig.low, 0, rig.out);
      EXPECT_EQ(rig.out.front().kind, ActionKind::kLost);
      rig.out.erase(rig.out.begin());
    }
    EXPECT_EQ(rig.starts(), (Starts{{1, rig.high}}));
  }
}

TEST(Late, ARetriedRequestKeepsOffAndTheOthersPassIt) {
  Rig rig(Policy::kLate);
  const InstanceId a = rig.level(128, 2);
  const RequestHandle first = rig.arrive(10);
  const RequestHandle second = rig.arrive(10);
  rig.arrive(10);
  rig.look();
  EXPECT_EQ(rig.scheduler.retry(first, a, 0, rig.out), Admission::kQueued);
  EXPECT_EQ(rig.starts(), (Starts{{2, a}}));
  rig.arrive(10);
  rig.scheduler.finish(second, Verdict::kAnswered, 0, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{0, a + 1}}));
}

TEST(Late, AnArrivalPassesARetriedOneThatKeepsOffTheOnlyRoom) {
  Rig rig(Policy::kLate);
  const InstanceId a = rig.level(128, 2);
  const RequestHandle first = rig.arrive(10);
  rig.arrive(10);
  rig.look();
  EXPECT_EQ(rig.scheduler.retry(first, a, 0, rig.out), Admission::kQueued);  // a has room, and is kept off
  EXPECT_TRUE(rig.look().empty());
  EXPECT_EQ(rig.starts_on(10), a);
}

// Its whole home is the instance to keep off: a longer level takes it when it gets room.
TEST(Late, ARetriedRequestThatKeepsOffItsWholeHomeIsTakenByAnotherLevel) {
  TwoLevels rig;
  const RequestHandle on_high = rig.arrive(400);
  const RequestHandle h = rig.arrive(10);
  EXPECT_EQ(rig.scheduler.retry(h, rig.low, 0, rig.out), Admission::kQueued);
  rig.look();
  rig.scheduler.finish(on_high, Verdict::kAnswered, kMs, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{1, rig.high}}));
}

TEST(Late, ExpireLooksAgainAtHomesThatHaveFallenBehind) {
  TwoLevels rig;
  rig.arrive(10);
  rig.arrive(10);
  rig.look();
  rig.scheduler.expire(2 * kMs, rig.out);  // just due: 2 ms more than waiting
  EXPECT_TRUE(rig.look().empty());
  rig.scheduler.expire(6 * kMs, rig.out);  // 4 ms late, expected to stay so as long again
  EXPECT_EQ(rig.starts(), (Starts{{1, rig.high}}));
}

TEST(Late, AFullQueueRefusesUnlessTheArrivalMakesOneStart) {
  TwoLevels rig({.policy = Policy::kLate, .max_queued = 1});
  rig.arrive(10);
  rig.arrive(10);
  rig.look();
  rig.arrive(10);
  EXPECT_EQ(rig.last.admission, Admission::kQueued);
  EXPECT_EQ(rig.starts(), (Starts{{1, rig.high}}));
  EXPECT_EQ(rig.arrive(10), kNone);
  EXPECT_EQ(rig.last.admission, Admission::kFull);
  EXPECT_EQ(rig.scheduler.queued(), 1);
}

TEST(Late, ALimitAboveOneSendsAheadAndPrefersTheIdle) {
  Rig rig(Policy::kLate);
  const InstanceId a = rig.level(128, 2, 100, 2);
  for (const InstanceId expected : {a, a + 1, a, a + 1}) EXPECT_EQ(rig.starts_on(10), expected);
  rig.arrive(10);
  EXPECT_EQ(rig.last.admission, Admission::kQueued);
}

}  // namespace
}  // namespace arlo::dispatch
