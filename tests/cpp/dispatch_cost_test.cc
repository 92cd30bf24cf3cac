// Limits of the model; its times are compared with arlo/catalog/latency.py in tests/property/test_latency_table.py.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "dispatch/cost_model.h"

namespace arlo::dispatch {
namespace {

RuntimeSpec spec(bool dynamic, std::vector<LatencyPoint> points, std::int32_t max_batch = 1) {
  return {.max_length = 512, .max_batch = max_batch, .capacity = 1, .dynamic = dynamic, .latency = std::move(points)};
}

TEST(CostModel, LongTimesAndLengthsDoNotOverflow) {
  constexpr TimeNs kHour = 3'600'000'000'000;
  const CostModel cost(spec(true, {{1, 1, 0}, {kMaxLength, 1, kHour}}, kMaxBatch));
  EXPECT_EQ(cost.at(kMaxLength, kMaxBatch), kHour * kMaxBatch);
  EXPECT_NEAR(static_cast<double>(cost.alone(kMaxLength / 2)), 0.5 * kHour, 0.001 * kHour);
}

TEST(CostModel, BadPointsAreRefusedByName) {
  const auto message = [](std::vector<LatencyPoint> points) -> std::string {
    try {
      const CostModel cost(spec(true, std::move(points)));
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({}), "latency: at least one point is needed");
  EXPECT_EQ(message({{0, 1, 5}}), "latency: length 0 is not in 1 to 1048576 tokens");
  EXPECT_EQ(message({{1, 0, 5}}), "latency: batch 0 is not in 1 to 65536 rows");
  EXPECT_EQ(message({{1, 1, -5}}), "latency: -5 ns is not in 0 to one hour");
  EXPECT_EQ(message({{8, 2, 5}, {8, 2, 6}}), "latency: two points for length 8, batch 2");
}

}  // namespace
}  // namespace arlo::dispatch
