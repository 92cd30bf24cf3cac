// Rows that become one again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "flow_pipeline_fixture.h"

namespace arlo::flow::pipeline {
namespace {

// 0 forks to 1 and 2, whose rows join at 3.
Spec diamond() {
  Spec spec;
  spec.stages = {{{variant(0, .9, kMs)}},
                 {{variant(1, .8, kMs), variant(2, .6, kMs)}},
                 {{variant(3, .5, kMs)}},
                 {{variant(4, .95, 2 * kMs)}}};
  spec.edges = {{0, 1, {2}, 0}, {0, 2, {1}, 0}, {1, 3, {.5, .5}, 0, false, 0}, {2, 3, {0}, 0, false, 0}};
  return spec;
}

struct Joined : ::testing::Test {
  explicit Joined(const Spec& spec = diamond()) : rig(spec) {
    for (std::size_t v = 0; v < rig.runtimes.size(); ++v) workers.push_back(rig.join(v));
  }
  [[nodiscard]] int entered(std::int32_t stage) const {
    const auto all = rig.of(Step::Kind::kEnter);
    return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const Step& s) { return s.stage == stage; }));
  }
  [[nodiscard]] Step exit() const { return rig.of(Step::Kind::kExit).at(0); }

  Rig rig;
  std::vector<dispatch::InstanceId> workers;  // by variant
};

TEST_F(Joined, OneRowOfAllThatCame) {
  rig.arrive();
  rig.finish(workers[0], {2, 1});
  EXPECT_EQ(rig.running.count(workers[1]), 1U);
  rig.finish(workers[3], {1});
  EXPECT_EQ(entered(3), 0);
  rig.finish(workers[1], {1});
  EXPECT_EQ(entered(3), 0) << "one is under way";
  rig.finish(workers[1], {1});
  ASSERT_EQ(entered(3), 1);
  const Step row = rig.steps.back();
  EXPECT_EQ(rig.joined, 1U);
  EXPECT_DOUBLE_EQ(row.utility, 1) << "all of the root's worth";
  rig.finish(workers[4]);
  EXPECT_EQ(exit().answered, 1);
  EXPECT_DOUBLE_EQ(exit().served, 1);
  // Half of it came by stage 1, half by stage 2.
  EXPECT_NEAR(exit().accuracy, (.9 * .8 + .9 * .5) / 2 * .95, 1e-12);
  EXPECT_FALSE(rig.unsound);
}

TEST_F(Joined, NoneWhereNothingComes) {
  rig.arrive();
  rig.finish(workers[0], {2, 0});
  rig.finish(workers[1]);  // ends there
  rig.finish(workers[1]);
  EXPECT_EQ(rig.joined, 0U);
  EXPECT_EQ(exit().answered, 2);
}

TEST_F(Joined, OfTheOtherBranchAlone) {
  rig.arrive();
  rig.finish(workers[0], {0, 1});
  rig.finish(workers[3], {1});
  rig.finish(workers[4]);
  EXPECT_NEAR(exit().accuracy, (.9 + .9 * .5 * .95) / 2, 1e-12) << "what the other edge did not make ends at the fork";
  EXPECT_FALSE(exit().failed);
}

TEST_F(Joined, RowsOfOneRootDoNotMixWithThoseOfAnother) {
  rig.arrive();
  rig.finish(workers[0], {1, 1});
  rig.arrive();
  rig.finish(workers[0], {1, 1});
  rig.finish(workers[1], {1});
  rig.finish(workers[1], {1});
  EXPECT_EQ(rig.joined, 0U);
  rig.finish(workers[3], {1});
  rig.finish(workers[3], {1});
  EXPECT_EQ(rig.joined, 2U);
  EXPECT_FALSE(rig.unsound);
}

TEST_F(Joined, ARowThatCannotBeMadeIsDropped) {
  rig.joins_fail = true;
  rig.arrive();
  rig.finish(workers[0], {1, 0});
  rig.finish(workers[1], {1});
  EXPECT_EQ(rig.of(Step::Kind::kDrop).at(0).stage, 3);
  EXPECT_TRUE(exit().failed);
}

struct PartialJoin : Joined {
  PartialJoin() : Joined(partial()) {}
  static Spec partial() {
    Spec spec = diamond();
    spec.on_drop = OnDrop::kPartial;
    return spec;
  }
};

TEST_F(PartialJoin, OfWhatIsLeft) {
  rig.arrive();
  rig.finish(workers[0], {2, 1});
  rig.finish(workers[1], {1});
  rig.leave(workers[3], false);  // with what runs there
  rig.finish(workers[1], {1});
  rig.finish(workers[4]);
  EXPECT_EQ(exit().dropped, 1);
  EXPECT_FALSE(exit().failed);
  EXPECT_NEAR(exit().served, .5, 1e-12);
}

TEST(Joins, AreNested) {
  // 0 makes rows of 1, each of which makes rows of 2; these join at 3 by row of 1, and 3 at 4 by row of 0.
  Spec spec;
  for (std::uint16_t v = 0; v < 5; ++v) spec.stages.push_back({{variant(v, .9, kMs)}});
  spec.edges = {{0, 1, {2}, 0}, {1, 2, {2}, 0}, {2, 3, {.5}, 0, false, 1}, {3, 4, {.5}, 0, false, 0}};
  Rig rig(spec);
  std::vector<dispatch::InstanceId> workers;
  for (std::size_t v = 0; v < 5; ++v) workers.push_back(rig.join(v));
  rig.arrive();
  rig.finish(workers[0], {2});
  rig.finish(workers[1], {3});
  for (int i = 0; i < 3; ++i) rig.finish(workers[2], {1});
  EXPECT_EQ(rig.joined, 1U);
  rig.finish(workers[3], {1});
  EXPECT_EQ(rig.joined, 1U) << "another row of 1 is under way";
  rig.finish(workers[1], {1});
  rig.finish(workers[2], {1});
  rig.finish(workers[3], {1});
  EXPECT_EQ(rig.joined, 3U);
  rig.finish(workers[4]);
  EXPECT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  EXPECT_NEAR(rig.of(Step::Kind::kExit)[0].accuracy, std::pow(.9, 5), 1e-12);
}

TEST(Joins, HaveTimeLeftForWhatIsBehind) {
  // The shorter branch must leave time for the head, too.
  Rig rig(diamond());
  for (std::size_t v = 0; v < rig.runtimes.size(); ++v) rig.join(v);
  rig.arrive(10 * kMs);
  rig.finish(0, {1, 1});
  for (const Step& s : rig.of(Step::Kind::kEnter)) {
    if (s.stage == 0) continue;
    EXPECT_EQ(s.due, 8 * kMs) << s.stage;
  }
}

// A pipeline of one variant a stage, each with a worker.
struct Simple {
  explicit Simple(const Spec& spec) : rig(spec) {
    for (std::size_t v = 0; v < rig.runtimes.size(); ++v) workers.push_back(rig.join(v));
  }
  static Spec of(const std::vector<double>& accuracies, std::vector<EdgeSpec> edges) {
    Spec spec;
    for (const double accuracy : accuracies) {
      spec.stages.push_back({{variant(static_cast<std::uint16_t>(spec.stages.size()), accuracy, kMs)}});
    }
    spec.edges = std::move(edges);
    return spec;
  }
  void finish(std::size_t stage, const std::vector<std::int32_t>& counts = {}) { rig.finish(workers[stage], counts); }
  [[nodiscard]] bool runs(std::size_t stage) const { return rig.running.contains(workers[stage]); }

  Rig rig;
  std::vector<dispatch::InstanceId> workers;
};

TEST(Joins, OfTwoHeadsWaitForTheirOwnAlone) {
  Simple one(Simple::of({.9, .9, .9, .9, .9},
                        {{0, 1, {1}, 0}, {0, 2, {1}, 0}, {1, 3, {1}, 0, false, 0}, {2, 4, {1}, 0, false, 0}}));
  one.rig.arrive();
  one.finish(0, {1, 1});
  one.finish(2, {1});
  EXPECT_TRUE(one.runs(4)) << "1 leads elsewhere";
  EXPECT_TRUE(one.runs(1));

  // An inner fork of which one branch leads to the outer head.
  Simple inner(
      Simple::of({.9, .9, .9, .9, .9, .9},
                 {{0, 1, {1}, 0}, {1, 2, {1}, 0}, {1, 3, {1}, 0}, {2, 4, {1}, 0, false, 0}, {3, 5, {1}, 0, false, 1}}));
  inner.rig.arrive();
  inner.finish(0, {1});
  inner.finish(1, {1, 1});
  inner.finish(2, {1});
  EXPECT_TRUE(inner.runs(4));
  EXPECT_TRUE(inner.runs(3));

  // A head that leads to the other one is waited for.
  Simple both(Simple::of(
      {.9, .9, .9, .9, .9},
      {{0, 1, {1}, 0}, {0, 2, {1}, 0}, {1, 3, {1}, 0, false, 0}, {3, 4, {1}, 0, false, 0}, {2, 4, {0}, 0, false, 0}}));
  both.rig.arrive();
  both.finish(0, {1, 1});
  both.finish(2, {1});
  both.finish(1, {1});
  EXPECT_TRUE(both.runs(3));
  EXPECT_FALSE(both.runs(4));
  both.finish(3, {1});
  EXPECT_TRUE(both.runs(4));
}

TEST(Joins, TheBestWayCanBeAskedFor) {
  for (int children = 1; children <= 20; ++children) {
    for (const double a : {.5, .6, .77, .83, .9, .95}) {
      Spec spec = Simple::of({a, a, a}, {{0, 1, {1}, 0}, {1, 2, {1}, 0, false, 0}});
      Simple one(spec);
      one.rig.arrive(kNever, 1, best_way(one.rig.pipeline->tree()).accuracy);
      one.finish(0, {children});
      for (int i = 0; i < children; ++i) one.finish(1, {1});
      EXPECT_TRUE(one.runs(2)) << children << " of " << a;
    }
  }
  Simple uneven(Simple::of({1, .9, .8, .9},
                           {{0, 1, {1}, 0}, {0, 2, {1}, 0}, {1, 3, {1}, 0, false, 0}, {2, 3, {0}, 0, false, 0}}));
  const BestWay best = best_way(uneven.rig.pipeline->tree());
  EXPECT_NEAR(best.accuracy, .8 * .9, 1e-12) << "of the worse branch";
  uneven.rig.arrive(kNever, 1, best.accuracy);
  uneven.finish(0, {1, 1});
  uneven.finish(1, {1});
  uneven.finish(2, {1});
  EXPECT_TRUE(uneven.runs(3));
}

TEST(Joins, AnAnswerThatStandsInIsAsGoodAsItsParts) {
  // The head's answer counts where the last stage's does not come: what it was made of matters, not what the tree says.
  const auto stands_in = [](double main, double beside, double wanted) {
    Spec spec = Simple::of(
        {1, main, beside, .9, 1},
        {{0, 1, {1}, 0}, {0, 2, {1}, 0}, {1, 3, {1}, 0, false, 0}, {2, 3, {0}, 0, false, 0}, {3, 4, {1}, 0, true}});
    spec.accuracy = {1, main, beside, main * .9, .95};
    Simple one(spec);
    one.rig.arrive(kNever, 1, wanted);
    one.finish(0, {1, 1});
    one.finish(1, {1});
    one.finish(2, {1});
    one.finish(3, {1});
    one.rig.leave(one.workers[4], false);
    const Step exit = one.rig.of(Step::Kind::kExit).at(0);
    if (!exit.failed) EXPECT_NEAR(exit.accuracy, (main + beside) / 2 * .9, 1e-12);
    return !exit.failed;
  };
  EXPECT_FALSE(stands_in(1, .9, .88));
  EXPECT_TRUE(stands_in(.9, 1, .84));
  EXPECT_TRUE(stands_in(.9, 1, .9 * .95));
}

TEST(Joins, AreCheckedInNoTime) {
  Spec spec = Simple::of(std::vector<double>(kMaxStages, .9), {{0, 1, {1}, 0}, {1, 2, {1}, 0, false, 0}});
  for (std::int32_t from = 2; from < kMaxStages; ++from) {
    for (std::int32_t to = std::max(from + 1, 3); to < kMaxStages; ++to) {
      for (int same = 0; same < 4; ++same) spec.edges.push_back({from, to, {1}, 0, false, 0});
    }
  }
  EXPECT_THROW(validate(spec), std::invalid_argument);  // within the test's time limit
}

TEST(Joins, BadOnesAreRefused) {
  const auto refused = [](auto change) {
    Spec spec = diamond();
    change(spec);
    EXPECT_THROW(validate(spec), std::invalid_argument);
  };
  validate(diamond());
  refused([](Spec& s) { s.edges[2].join = -1; });
  refused([](Spec& s) { s.edges[3].join = 1; });
  refused([](Spec& s) { s.edges[2].join = s.edges[3].join = 1; });
  refused([](Spec& s) { s.edges[2].falls_back = true; });
  refused([](Spec& s) { s.edges[0].falls_back = true; });
  refused([](Spec& s) { s.edges[3].from = 0; });
  refused([](Spec& s) {  // a row of 3 comes of one of 0, not of one of 1
    s.stages.push_back({{variant(5, 1, kMs)}});
    s.edges.push_back({3, 4, {1}, 0, false, 1});
  });
  refused([](Spec& s) {
    s.stages.push_back({{variant(5, 1, kMs)}});
    s.edges.push_back({2, 4, {1}, 0});
  });
}

}  // namespace
}  // namespace arlo::flow::pipeline
