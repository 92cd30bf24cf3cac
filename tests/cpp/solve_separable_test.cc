#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "solve/exact.h"
#include "solve_exhaustive.h"

namespace arlo::solve {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whole numbers, so that there are many ties and every sum is exact.
TEST(Separable, AgreesWithExhaustiveSearchToTheTie) {
  std::mt19937 random(1);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 3000; ++round) {
    const int workers = draw(0, 8);
    const int count = draw(1, 5);
    std::vector<std::vector<double>> cost(count);
    std::vector<int> lower(count);
    for (int i = 0; i < count; ++i) {
      for (int n = 0; n <= workers; ++n) cost[i].push_back(draw(0, 9) == 0 ? kInfinity : draw(-4, 4));
      lower[i] = std::max(0, draw(-3, 2));
    }
    double best = kInfinity;
    std::vector<int> wanted;
    each_allocation(workers, lower, [&](const std::vector<int>& n) {
      double sum = 0;
      for (int i = 0; i < count; ++i) sum += cost[i][n[i]];
      const bool longer = std::lexicographical_compare(wanted.rbegin(), wanted.rend(), n.rbegin(), n.rend());
      if (sum < best || (sum == best && sum < kInfinity && longer)) {
        best = sum;
        wanted = n;
      }
    });

    const Result result = SolveSeparable(workers, cost, lower);

    ASSERT_EQ(result.instances, wanted) << "round " << round;
    ASSERT_EQ(result.optimal, best < kInfinity);
    ASSERT_EQ(result.objective, best < kInfinity ? best : 0);
  }
}

TEST(Separable, ConvexTablesNeedNoSearch) {
  std::vector<std::vector<double>> cost(16, std::vector<double>(1001));
  for (int i = 0; i < 16; ++i) {
    for (int n = 0; n <= 1000; ++n) cost[i][n] = 1000.0 * (i + 1) / (n + 1);
  }
  const Result result = SolveSeparable(1000, cost, std::vector<int>(16, 0));
  ASSERT_TRUE(result.optimal);
  // No move of one worker makes it better: for convex tables that is the optimum.
  for (int from = 0; from < 16; ++from) {
    for (int to = 0; to < 16; ++to) {
      const int a = result.instances[from];
      const int b = result.instances[to];
      if (a == 0 || from == to) continue;
      EXPECT_GE(cost[from][a - 1] + cost[to][b + 1], cost[from][a] + cost[to][b] - 1e-9);
    }
  }
  EXPECT_LT(result.states, 500'000U);
}

TEST(Separable, NothingAllowed) {
  EXPECT_TRUE(SolveSeparable(2, {}, {}).instances.empty());
  EXPECT_TRUE(SolveSeparable(2, {{0, 0, 0}, {0, 0, 0}}, {2, 1}).instances.empty());
  EXPECT_TRUE(SolveSeparable(2, {{0, kInfinity, 0}, {kInfinity, 0, kInfinity}}, {0, 0}).instances.empty());
  EXPECT_TRUE(SolveSeparable(2, {{0, 0, kInfinity}}, {0}).instances.empty());
}

}  // namespace
}  // namespace arlo::solve
