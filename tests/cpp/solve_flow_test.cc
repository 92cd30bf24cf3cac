#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "solve/flow/problem.h"

namespace arlo::solve::flow {
namespace {

// a1 (accuracy 1, 10 rows/s, 2 children) and a2 (.8, 40, 1) before b1 (1, 20) and b2 (.9, 80).
std::vector<Stage> Chain(double demand) {
  Stage a, b;
  a.variants = b.variants = 2;
  a.factor = {demand};
  a.exit = {0, 0};
  a.accuracy = {1, 0.8};
  a.options = {{0, 0.1, 0.1}, {1, 0.025, 0.025}};
  b.parent = 0;
  b.factor = {2, 1};
  b.exit = {1, 1};
  b.accuracy = {1, 0.9, 0.8, 0.72};
  b.options = {{0, 0.05, 0.05}, {1, 0.0125, 0.0125}};
  return {a, b};
}

std::vector<int> Counts(const Answer& answer) {
  std::vector<int> found;
  for (const auto& stage : answer.instances) found.insert(found.end(), stage.begin(), stage.end());
  return found;
}

TEST(Flow, AChainOfTwo) {
  const auto plan = [](double demand) { return Solve(Chain(demand), {.workers = 4}); };
  EXPECT_EQ(Counts(plan(20)), (std::vector<int>{2, 0, 2, 0}));
  EXPECT_NEAR(plan(20).value, 1, 1e-9);
  EXPECT_EQ(Counts(plan(30)), (std::vector<int>{3, 0, 0, 1}));
  EXPECT_NEAR(plan(30).value, 0.9, 1e-9);
  EXPECT_EQ(Counts(plan(40)), (std::vector<int>{2, 1, 0, 1}));
  EXPECT_NEAR(plan(40).value, 0.81, 1e-9);
  EXPECT_NEAR(plan(60).value, 0.78, 1e-9);
  EXPECT_TRUE(plan(60).optimal);
  EXPECT_NEAR(plan(100).served, 0.8, 1e-6);
  EXPECT_NEAR(Solve(Chain(100), {.workers = 4, .served_only = true}).value, -0.2, 1e-6);
}

// 100 W each, and workers enough: 20, 12.5, 7.5 and 3.75 J for 1, .9, .8 and .72 of a right answer.
TEST(Flow, EnergyGivesAccuracyUp) {
  const auto plan = [](double joule, double demand) {
    std::vector<Stage> stages = Chain(demand);
    for (Stage& stage : stages) {
      for (Option& option : stage.options) option.energy = joule * 100 * option.work / demand;
    }
    return Solve(stages, {.workers = 4, .unserved = 1000 + joule * 20});
  };
  EXPECT_NEAR(plan(.01, 10).value, 1 - .2, 1e-9);
  EXPECT_NEAR(plan(.015, 10).value, .9 - .015 * 12.5, 1e-9);
  EXPECT_EQ(Counts(plan(.015, 10)), (std::vector<int>{1, 0, 0, 1}));
  EXPECT_NEAR(plan(.0205, 10).value, .8 - .0205 * 7.5, 1e-9);
  EXPECT_EQ(Counts(plan(.03, 10)), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_NEAR(plan(1e6, 10).served, 1, 1e-9);
  EXPECT_NEAR(plan(1e6, 100).served, .8, 1e-6);
  EXPECT_NEAR(plan(.015, 10).price, 0, 1e-9);
  EXPECT_EQ(Counts(plan(0, 30)), Counts(Solve(Chain(30), {.workers = 4})));
}

TEST(Flow, PathsThatAreTooLongAreNeverTaken) {
  std::vector<Stage> stages = Chain(10);
  stages[1].limit = 0.08;  // only a2 before b1 or b2
  const Answer found = Solve(stages, {.workers = 4});
  EXPECT_NEAR(found.value, 0.8, 1e-9);
  for (const Mix& mix : found.mixes) EXPECT_EQ(mix.options[0], 1);
  stages[1].limit = 0.03;
  const Answer none = Solve(stages, {.workers = 4});
  EXPECT_EQ(none.served, 0);
  EXPECT_TRUE(none.mixes.empty());
}

TEST(Flow, ATargetThatCannotBeReachedHasNoPlanOfItsValue) {
  EXPECT_GE(Solve(Chain(40), {.workers = 4, .target = 0.8}).value, 0.8);
  EXPECT_LT(Solve(Chain(40), {.workers = 4, .target = 0.82}).value, 0.82);
}

TEST(Flow, NoWorkersServeNothing) { EXPECT_EQ(Solve(Chain(40), {.workers = 0}).served, 0); }

// Random trees of up to three stages: whole instances are never better than fractions, more workers never worse, what
// is served fits into the instances, and one batch cap for each variant is kept where it is asked for.
TEST(Flow, RandomTrees) {
  std::mt19937 random(1);
  const auto draw = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    std::vector<Stage> stages(1 + random() % 3);
    std::vector<std::size_t> prefixes;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      Stage& stage = stages[s];
      stage.parent = s == 0 ? -1 : static_cast<int>(random() % s);
      stage.variants = 1 + static_cast<int>(random() % 3);
      const std::size_t above = s == 0 ? 1 : prefixes[stage.parent];
      prefixes.push_back(above * stage.variants);
      for (int i = 0; i < (s == 0 ? 1 : stages[stage.parent].variants); ++i) {
        stage.factor.push_back(s == 0 ? draw(5, 200) : draw(0, 3));
      }
      for (std::size_t i = 0; i < prefixes[s]; ++i) stage.accuracy.push_back(draw(0.3, 1));
      for (int v = 0; v < stage.variants; ++v) {
        const double one = draw(0.005, 0.04);
        stage.options.push_back({v, one, one});
        if (random() % 2 == 0) stage.options.push_back({v, one * 0.7, one * 2.8});
      }
      stage.limit = draw(0.03, 0.2);
    }
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const bool leaf = std::none_of(stages.begin(), stages.end(),
                                     [&](const Stage& each) { return each.parent == static_cast<int>(s); });
      stages[s].exit.assign(stages[s].variants, leaf ? 1.0 : random() % 2 == 0 ? 0.4 : 0.0);
    }
    const bool single = random() % 2 == 0;
    double before = -1e9;
    for (const int workers : {2, 5, 9}) {
      const Answer found = Solve(stages, {.workers = workers, .single_batch = single});
      ASSERT_TRUE(found.optimal) << round;
      ASSERT_LE(found.value, found.relaxed + 1e-7) << round;
      ASSERT_GE(found.value, before - 1e-6) << round;
      before = found.value;
      int sum = 0;
      std::vector<std::vector<double>> load(stages.size());
      for (std::size_t s = 0; s < stages.size(); ++s) {
        load[s].assign(stages[s].options.size(), 0.0);
        std::vector<int> caps(stages[s].variants, 0);
        for (std::size_t o = 0; o < stages[s].options.size(); ++o) {
          sum += found.instances[s][o];
          if (found.instances[s][o] > 0) ++caps[stages[s].options[o].variant];
        }
        if (single) {
          ASSERT_LE(*std::max_element(caps.begin(), caps.end()), 1) << round;
        }
      }
      ASSERT_LE(sum, workers) << round;
      for (const Mix& mix : found.mixes) {
        std::vector<double> rows(stages.size()), spent(stages.size());
        for (std::size_t s = 0; s < stages.size(); ++s) {
          const Option& option = stages[s].options[mix.options[s]];
          const int parent = stages[s].parent;
          rows[s] = s == 0 ? stages[0].factor[0]
                           : rows[parent] * stages[s].factor[stages[parent].options[mix.options[parent]].variant];
          spent[s] = option.latency + (s == 0 ? 0 : spent[parent]);
          ASSERT_LE(spent[s], stages[s].limit) << round;
          load[s][mix.options[s]] += mix.weight * rows[s] * option.work;
        }
      }
      for (std::size_t s = 0; s < stages.size(); ++s) {
        for (std::size_t o = 0; o < load[s].size(); ++o) ASSERT_LE(load[s][o], found.instances[s][o] + 1e-6) << round;
      }
    }
  }
}

}  // namespace
}  // namespace arlo::solve::flow
