// Latency statistics against exact ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gateway/desk/latency_stats.h"
#include "gateway_fixture.h"

namespace arlo::gateway {
namespace {

constexpr TimeNs kSecond = 1'000'000'000;

// The value of rank ceil(q n), 1-based.
std::uint64_t exact(std::vector<std::uint64_t> values, double quantile) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(quantile * static_cast<double>(values.size())));
  return values[rank - 1];
}

void expect_close(std::uint64_t wanted, std::uint64_t found) {
  EXPECT_LE(std::abs(static_cast<double>(found) - static_cast<double>(wanted)), 0.03 * static_cast<double>(wanted))
      << wanted << " became " << found;
}

void expect_matches(const std::vector<std::uint64_t>& values, const LatencyWindow::Summary& summary) {
  ASSERT_EQ(summary.count, values.size());
  EXPECT_EQ(summary.mean_us, std::accumulate(values.begin(), values.end(), std::uint64_t{0}) / values.size());
  EXPECT_EQ(summary.max_us, *std::max_element(values.begin(), values.end()));
  expect_close(exact(values, 0.50), summary.p50_us);
  expect_close(exact(values, 0.90), summary.p90_us);
  expect_close(exact(values, 0.98), summary.p98_us);
  expect_close(exact(values, 0.99), summary.p99_us);
  EXPECT_LE(summary.p50_us, summary.p90_us);
  EXPECT_LE(summary.p90_us, summary.p98_us);
  EXPECT_LE(summary.p98_us, summary.p99_us);
  EXPECT_LE(summary.p99_us, summary.max_us);
}

TEST(LatencyWindow, PercentilesAreWithinThreePercent) {
  fixture::Random random(6);
  for (int round = 0; round < 200; ++round) {
    LatencyWindow window;
    std::vector<std::uint64_t> values;
    const auto bits = 1 + fixture::below(random, 35);
    for (auto n = 1 + fixture::below(random, 2000); n > 0; --n) {
      values.push_back(random() % (std::uint64_t{1} << (1 + fixture::below(random, bits))));
      window.record(values.back(), 5 * kSecond + static_cast<TimeNs>(fixture::below(random, 4) * kSecond));
    }
    expect_matches(values, window.summary(9 * kSecond));
    if (HasFailure()) FAIL() << "round " << round;
  }
}

// Alone in the window each percentile is the value itself or near it, on both sides of every bucket's bounds.
TEST(LatencyWindow, EveryMagnitudeIsWithinThreePercent) {
  for (int power = 0; power < 36; ++power) {
    for (int eighth = 0; eighth < 64; ++eighth) {
      const std::uint64_t at =
          (std::uint64_t{1} << power) + ((std::uint64_t{1} << power) * static_cast<unsigned>(eighth)) / 64;
      for (const std::uint64_t us : {at - 1, at, at + 1}) {
        LatencyWindow window;
        for (int i = 0; i < 200; ++i) window.record(us, 0);
        window.record(us * 4, 0);  // above, so that the maximum does not help
        const auto summary = window.summary(0);
        expect_close(us, summary.p50_us);
        expect_close(us, summary.p99_us);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST(LatencyWindow, SmallValuesAreExact) {
  for (std::uint64_t us = 0; us < 64; ++us) {
    LatencyWindow window;
    window.record(us, 0);
    window.record(1000, 0);
    EXPECT_EQ(window.summary(0).p50_us, us);
  }
}

TEST(LatencyWindow, EmptyIsAllZero) {
  const LatencyWindow window;
  for (const TimeNs now : {TimeNs{0}, 100 * kSecond}) {
    const auto summary = window.summary(now);
    EXPECT_EQ(summary.count, 0U);
    EXPECT_EQ(summary.mean_us + summary.p50_us + summary.p99_us + summary.max_us, 0U);
  }
}

TEST(LatencyWindow, ForgetsAfterTenSeconds) {
  LatencyWindow window;
  window.record(100, 3 * kSecond + 1);
  window.record(100, 3 * kSecond + 999'999'999);
  window.record(200, 4 * kSecond);
  EXPECT_EQ(window.summary(4 * kSecond).count, 3U);
  EXPECT_EQ(window.summary(13 * kSecond - 1).count, 3U);
  EXPECT_EQ(window.summary(13 * kSecond).count, 1U);
  EXPECT_EQ(window.summary(13 * kSecond).max_us, 200U);
  EXPECT_EQ(window.summary(14 * kSecond).count, 0U);
  EXPECT_EQ(window.summary(1'000'000 * kSecond).count, 0U);
}

TEST(LatencyWindow, ASlotThatComesRoundAgainStartsAfresh) {
  LatencyWindow window;
  for (std::int64_t second = 0; second < 25; ++second) {
    window.record(static_cast<std::uint64_t>(second) + 1, second * kSecond);
  }
  const auto summary = window.summary(24 * kSecond);
  EXPECT_EQ(summary.count, 10U);
  EXPECT_EQ(summary.max_us, 25U);
  EXPECT_EQ(summary.mean_us, 20U);  // 16 to 25
  EXPECT_EQ(summary.p50_us, 20U);
}

TEST(LatencyWindow, VeryLongLatenciesAreKeptAtTheTop) {
  LatencyWindow window;
  window.record(std::uint64_t{1} << 50, 0);
  const auto summary = window.summary(0);
  EXPECT_EQ(summary.max_us, std::uint64_t{1} << 50);
  EXPECT_GE(summary.p99_us, std::uint64_t{1} << 35);  // about 10 hours
}

TEST(LatencyBuckets, CountUpToAndIncludingTheirBound) {
  const auto& bounds = LatencyBuckets::kBoundsS;
  EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto us = static_cast<std::uint64_t>(std::llround(bounds[i] * 1e6));
    LatencyBuckets buckets;
    buckets.record(us);
    buckets.record(us + 1);
    EXPECT_EQ(buckets.counts()[i], 1U) << bounds[i];
    EXPECT_EQ(buckets.counts()[i + 1], 1U) << bounds[i];
    EXPECT_EQ(buckets.count(), 2U);
    EXPECT_DOUBLE_EQ(buckets.sum_s(), static_cast<double>(2 * us + 1) * 1e-6);
  }
}

TEST(LatencyBuckets, OnlyGrow) {
  fixture::Random random(7);
  LatencyBuckets buckets;
  std::uint64_t sum = 0;
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    const std::uint64_t us = fixture::below(random, 60'000'000);
    sum += us;
    buckets.record(us);
    ASSERT_EQ(buckets.count(), i);
    ASSERT_EQ(std::accumulate(buckets.counts().begin(), buckets.counts().end(), std::uint64_t{0}), i);
  }
  EXPECT_DOUBLE_EQ(buckets.sum_s(), static_cast<double>(sum) * 1e-6);
  EXPECT_GT(buckets.counts().back(), 0U);
}

}  // namespace
}  // namespace arlo::gateway
