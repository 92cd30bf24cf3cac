// Parts of the exact solver; its optima are held against exhaustive search in tests/property/test_allocation_exact.py.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "solve/curve.h"
#include "solve/exact.h"
#include "solve/level.h"
#include "solve/relaxation.h"
#include "solve_exhaustive.h"

namespace arlo::solve {
namespace {

constexpr std::uint64_t kMany = 10'000'000;

double between(std::mt19937& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

int one_of(std::mt19937& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

// With the lower bounds of Eq. 3 and 7.
std::vector<Runtime> random_runtimes(std::mt19937& random, int count, int most_instances, bool noisy) {
  std::vector<Runtime> runtimes;
  double ms = between(random, 1, 10);
  for (int i = 0; i < count; ++i) {
    ms *= between(random, noisy ? 0.8 : 1.0, 1.6);
    Runtime runtime;
    double batch_ms = ms;
    for (int rows = 1; runtime.latency_ms.size() < 4 && one_of(random, 0, 3) > 0; rows += one_of(random, 1, 3)) {
      runtime.latency_ms.emplace_back(rows, batch_ms);
      batch_ms *= between(random, noisy ? 0.5 : 1.0, 1.8);
    }
    if (runtime.latency_ms.empty()) runtime.latency_ms.emplace_back(1, ms);
    runtime.capacity = one_of(random, 0, 4) == 0 && i + 1 < count ? 0 : one_of(random, 1, 12);
    const double most = std::max(runtime.capacity, 1) * most_instances;
    if (one_of(random, 0, 3) > 0) runtime.demand = between(random, 0, most);
    if (one_of(random, 0, 1) == 0) runtime.demand = std::floor(runtime.demand);
    runtime.lower = runtime.capacity > 0 ? static_cast<int>(runtime.demand / runtime.capacity) : 0;
    runtimes.push_back(runtime);
  }
  runtimes.back().lower = std::max(runtimes.back().lower, 1);
  return runtimes;
}

int needed(const std::vector<Runtime>& runtimes) {
  return std::accumulate(runtimes.begin(), runtimes.end(), 0, [](int sum, const Runtime& r) { return sum + r.lower; });
}

TEST(Curve, AgreesWithItsDefinition) {
  const Runtime runtime{{{1, 5.0}, {2, 6.0}, {6, 14.0}}, 0, 0, 0};
  const Curve curve(runtime.latency_ms);
  for (double load = 0.25; load < 30; load += 0.25) EXPECT_DOUBLE_EQ(curve.mean_ms(load), mean_ms(runtime, load));
  EXPECT_TRUE(curve.rising());
  EXPECT_DOUBLE_EQ(curve.least_marginal(0, 1), 5.0);            // B * L(B) = 5 B
  EXPECT_DOUBLE_EQ(curve.least_marginal(1.5, 2), 4 + 2 * 1.5);  // B * (4 + B)
  EXPECT_FALSE(Curve({{1, 5.0}, {2, 4.0}}).rising());
}

TEST(Level, SegmentsCoverEveryNumberOnce) {
  const Level level{Curve({{1, 5.0}, {2, 6.0}, {6, 14.0}}), 9, 1, 40, 0, 0.0, 0, false};
  for (const double arriving : {0.0, 0.4, 1.0, 7.0, 12.5, 39.0}) {
    std::vector<int> seen(41);
    const int enough = level.enough(arriving);
    level.segments(arriving, enough, 40, [&](const Segment& segment) {
      for (int n = segment.lo; n <= segment.hi; ++n) ++seen[n];
      const int middle = (segment.lo + segment.hi) / 2;  // a constant + bend / N
      const double constant = level.curve.cost(arriving, segment.lo) - segment.bend / segment.lo;
      EXPECT_NEAR(level.curve.cost(arriving, middle), constant + segment.bend / middle, 1e-9);
    });
    for (int n = 0; n <= 40; ++n) EXPECT_EQ(seen[n], n >= std::max(enough, 1) ? 1 : 0) << arriving << " " << n;
    EXPECT_EQ(enough, static_cast<int>(std::ceil(arriving / 9)));
  }
}

// The bound is what the proof stands on: never above the optimum, also with few left-over amounts told apart.
TEST(Relaxation, IsNeverAboveTheOptimum) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const std::vector<Runtime> runtimes = random_runtimes(random, one_of(random, 2, 8), 20, round % 2 == 0);
    const int workers = needed(runtimes) + one_of(random, 0, 30);
    const double best = SolveExact(workers, runtimes, kMany).objective;
    const std::vector<Level> levels = make_levels(workers, runtimes);
    double before = -std::numeric_limits<double>::infinity();
    for (const std::size_t amounts : {1, 3, 1000}) {
      Relaxation relaxation(levels, workers, amounts);
      relaxation.tune();
      EXPECT_LE(relaxation.total(), best + 1e-9 * (1 + best));
      before = std::max(before, relaxation.total());
    }
    EXPECT_GE(before, 0.5 * best);  // and worth something
  }
}

TEST(Exact, LowerBoundsMayBeBelowEquation3) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<Runtime> runtimes = random_runtimes(random, 4, 4, true);
    for (Runtime& runtime : runtimes) runtime.lower = 0;
    double best = std::numeric_limits<double>::infinity();
    each_allocation(7, {0, 0, 0, 1}, [&](const std::vector<int>& n) { best = std::min(best, eq1(runtimes, n)); });
    const Result result = SolveExact(7, runtimes, kMany);
    ASSERT_TRUE(result.optimal);
    ASSERT_NEAR(result.objective, best, 1e-11 * (1 + best));
  }
}

TEST(Exact, TiesGoToTheLongestRuntimes) {
  const Runtime idle{{{1, 2.0}}, 10, 0, 0};
  EXPECT_EQ(SolveExact(5, {idle, idle, idle}, kMany).instances, (std::vector<int>{0, 0, 5}));
  const Runtime two{{{1, 2.0}}, 10, 0, 2};
  const Runtime slower{{{1, 3.0}}, 10, 0, 2};
  const Runtime slowest{{{1, 4.0}}, 10, 0, 0};
  EXPECT_EQ(SolveExact(9, {two, slower, slowest}, kMany).instances, (std::vector<int>{2, 2, 5}));
  EXPECT_EQ(SolveExact(9, {two, two, idle}, kMany).instances, (std::vector<int>{0, 0, 9}));  // as quick everywhere
  // A longest runtime that gets quicker under load is to be left alone; the next one takes the idle workers.
  const Runtime odd{{{1, 4.0}, {2, 1.0}}, 10, 1, 2};
  EXPECT_EQ(SolveExact(6, {idle, idle, odd}, kMany).instances, (std::vector<int>{0, 5, 1}));
}

}  // namespace
}  // namespace arlo::solve
