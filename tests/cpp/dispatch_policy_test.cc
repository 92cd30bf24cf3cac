// Where each policy sends a request. The stories in tests/golden/dispatch tell longer ones.
#include <stdexcept>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

void load(Rig& rig, std::int32_t length, int times) {
  for (int i = 0; i < times; ++i) rig.arrive(length);
}

// Fig. 5: L = 3, lambda 0.85, alpha 0.9; a request of 200 tokens. Q2's head is at 54/60, Q3's at 28/48.
TEST(Rs, WorkedExampleOfFig5) {
  Rig rig(Options{.policy = Policy::kRs, .lambda = 0.85, .alpha = 0.9, .max_peek = 3});
  const InstanceId q2 = rig.level(256, 2, 60, 100);
  load(rig, 200, 109);  // the only level so far: 55 and 54
  const InstanceId q3 = rig.level(384, 2, 48, 100);
  load(rig, 300, 57);  // 29 and 28
  const InstanceId q4 = rig.level(512, 1, 40, 100);
  load(rig, 500, 10);
  rig.level(128, 1, 100, 100);  // Q1: too short
  ASSERT_EQ(rig.outstanding(q2 + 1), 54);
  ASSERT_EQ(rig.outstanding(q3 + 1), 28);
  ASSERT_EQ(rig.outstanding(q4), 10);
  EXPECT_EQ(rig.starts_on(200), q3 + 1);
  EXPECT_EQ(rig.out.back().level, 2);
  EXPECT_TRUE(rig.out.back().demoted);
}

TEST(Rs, CongestionMustBeBelowTheThreshold) {
  Rig rig(Options{.policy = Policy::kRs, .lambda = 0.5, .alpha = 1.0});
  const InstanceId low = rig.level(128, 1, 4, 9);
  const InstanceId high = rig.level(256, 1, 4, 9);
  EXPECT_EQ(rig.starts_on(10), low);
  EXPECT_EQ(rig.starts_on(10), low);
  EXPECT_EQ(rig.starts_on(10), high);  // 2/4 is not below 0.5
}

TEST(Rs, FirstCandidateWhenAllAreCongested) {
  Rig rig(Options{.policy = Policy::kRs, .lambda = 0.4, .alpha = 0.5});
  const InstanceId low = rig.level(128, 1, 1, 9);
  const InstanceId high = rig.level(256, 1, 1, 9);
  EXPECT_EQ(rig.starts_on(10), low);
  EXPECT_EQ(rig.starts_on(10), high);
  EXPECT_EQ(rig.starts_on(10), low);
  EXPECT_EQ(rig.starts_on(10), low);
}

TEST(Rs, EmptyLevelsAreNoCandidatesAndDoNotCountAsPeeked) {
  Rig rig(Options{.policy = Policy::kRs, .max_peek = 2});
  const InstanceId low = rig.level(64, 1, 1, 9);
  rig.level(128, 0);
  rig.level(192, 0);
  const InstanceId high = rig.level(256, 1, 1, 9);
  EXPECT_EQ(rig.starts_on(10), low);
  EXPECT_EQ(rig.starts_on(10), high);
}

TEST(Rs, HeadIsTheLowestCongestionWhereCapacitiesDiffer) {
  Rig rig(Policy::kRs);
  const InstanceId slow = rig.level(128, 1, 2, 9);
  const InstanceId fast = rig.level(128, 1, 10, 9);  // another runtime of the same level
  EXPECT_EQ(rig.scheduler.levels(), 1);
  EXPECT_EQ(rig.starts_on(10), slow);  // 0 and 0: the lower id
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rig.starts_on(10), fast);
  EXPECT_EQ(rig.starts_on(10), slow);  // 1/2 and 5/10: equal again
}

TEST(Ilb, NeverLeavesTheShortestLevelThatFits) {
  Rig rig(Policy::kIlb);
  const InstanceId low = rig.level(128, 1, 1, 99);
  rig.level(256, 1, 1, 99);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rig.starts_on(10), low);
}

TEST(Ig, CountsRequestsAndTiesGoToTheLowerLevelThenId) {
  Rig rig(Policy::kIg);
  const InstanceId low = rig.level(128, 2, 1000, 9);
  const InstanceId high = rig.level(256, 1, 1, 9);
  EXPECT_EQ(rig.starts_on(10), low);
  EXPECT_EQ(rig.starts_on(10), low + 1);
  EXPECT_EQ(rig.starts_on(10), high);
  EXPECT_EQ(rig.starts_on(10), low);
}

TEST(Uniform, TakesOneMaxLengthOnly) {
  Rig rig(Policy::kUniform);
  const InstanceId first = rig.level(512, 2);
  EXPECT_EQ(rig.starts_on(10), first);
  EXPECT_EQ(rig.starts_on(500), first + 1);
  EXPECT_THROW(rig.scheduler.add_runtime(static_runtime(256)), std::invalid_argument);
  EXPECT_EQ(rig.scheduler.levels(), 1);
}

TEST(Infaas, FillsTheFullestBelowCapacityThenTheLeastLoaded) {
  Rig rig(Policy::kInfaas);
  const InstanceId low = rig.level(128, 2, 2, 9);
  for (const InstanceId expected : {low, low, low + 1, low + 1, low, low + 1, low}) {
    EXPECT_EQ(rig.starts_on(10), expected);
  }
}

TEST(Eft, WeighsTheLongerTimeOfALongerLevel) {
  Rig rig(Policy::kEft);
  const InstanceId low = rig.level(128, 1, 100, 9, 2 * kMs);
  const InstanceId high = rig.level(512, 1, 100, 9, 5 * kMs);
  EXPECT_EQ(rig.starts_on(10), low);   // finishes at 2
  EXPECT_EQ(rig.starts_on(10), low);   // 4
  EXPECT_EQ(rig.starts_on(10), high);  // 5 there, 6 here
  EXPECT_EQ(rig.starts_on(10), low);   // 6
}

TEST(Eft, ChoosesTheFasterOfTwoRuntimesOfALevelAndTheLowerIdWhenEqual) {
  Rig rig(Policy::kEft);
  const InstanceId slow = rig.level(128, 1, 100, 9, 3 * kMs);
  const InstanceId fast = rig.level(128, 1, 100, 9, kMs);
  EXPECT_EQ(rig.starts_on(10), fast);  // 1
  EXPECT_EQ(rig.starts_on(10), fast);  // 2
  EXPECT_EQ(rig.starts_on(10), slow);  // 3 on both
}

TEST(Eft, EqualFinishGoesToTheLowerLevel) {
  Rig rig(Policy::kEft);
  const InstanceId high = rig.level(512, 1, 100, 9, 2 * kMs);
  const InstanceId low = rig.level(128, 1, 100, 9, 2 * kMs);
  EXPECT_EQ(rig.starts_on(10), low);
  EXPECT_EQ(rig.starts_on(10), high);
}

TEST(Eft, AnInstanceThatIsOverdueDoesNotLookIdle) {
  Rig rig(Policy::kEft);
  const InstanceId hung = rig.level(128, 1, 100, 999, 2 * kMs);
  const InstanceId high = rig.level(512, 1, 100, 999, 5 * kMs);
  EXPECT_EQ(rig.starts_on(10), hung);
  rig.now = 1000 * kMs;  // 998 ms late: expected to stay so as long again
  for (int i = 0; i < 199; ++i) EXPECT_EQ(rig.starts_on(10), high) << i;
}

TEST(Eft, AFinishCorrectsTheEstimate) {
  Rig rig(Policy::kEft);
  const InstanceId first = rig.level(128, 2, 100, 1, 10 * kMs);
  rig.arrive(10);
  const RequestHandle quick = rig.arrive(10);
  rig.now = kMs;
  rig.scheduler.finish(quick, Verdict::kAnswered, rig.now, rig.out);
  EXPECT_EQ(rig.starts_on(10), first + 1);
}

// Lateness in the past of the origin: times may be negative.
TEST(Eft, NegativeTimes) {
  Rig rig(Policy::kEft);
  rig.now = -1000 * kMs;
  const InstanceId first = rig.level(128, 2, 100, 9, 2 * kMs);
  EXPECT_EQ(rig.starts_on(10), first);
  EXPECT_EQ(rig.starts_on(10), first + 1);
  EXPECT_EQ(rig.starts_on(10), first);
}

TEST(Options, BadOnesAreRefusedByName) {
  const auto message = [](Options options) -> std::string {
    try {
      const Scheduler scheduler(options);
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({.lambda = 0}), "lambda: 0.000000 is not above 0");
  EXPECT_EQ(message({.lambda = std::numeric_limits<double>::quiet_NaN()}), "lambda: nan is not above 0");
  EXPECT_EQ(message({.alpha = 1.5}), "alpha: 1.500000 is not in (0, 1]");
  EXPECT_EQ(message({.max_peek = 0}), "max_peek: 0 is not at least 1");
  EXPECT_EQ(message({.max_queued = -1}), "max_queued: -1 is not at least 0");
  EXPECT_EQ(message({}), "accepted");
}

TEST(Options, PolicyNamesGoBothWays) {
  for (const char* name : {"rs", "ilb", "ig", "infaas", "uniform", "eft", "late"}) {
    EXPECT_EQ(policy_name(parse_policy(name)), name);
  }
  EXPECT_THROW(parse_policy("RS"), std::invalid_argument);
}

}  // namespace
}  // namespace arlo::dispatch
