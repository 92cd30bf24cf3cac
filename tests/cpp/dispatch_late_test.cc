// Late binding: who starts where, and who waits. The common cases are stories (tests/golden/dispatch/late_*.txt).
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

}  // namespace
}  // namespace arlo::dispatch
