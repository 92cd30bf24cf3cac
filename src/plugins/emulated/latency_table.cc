#include "plugins/emulated/latency_table.h"

#include <charconv>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace arlo::triton {
namespace {

constexpr int64_t kLongest = 1 << 20;          // tokens
constexpr int64_t kMostRows = 1 << 16;         // of a batch
constexpr int64_t kSlowestUs = 3'600'000'000;  // an hour

int64_t ParseNumber(std::string_view text, std::string_view point, int64_t minimum, int64_t maximum) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum || value > maximum) {
    throw std::invalid_argument("latency_us: '" + std::string(point) +
                                "' is not length:batch:us with length and batch at least 1 and us at least 0");
  }
  return value;
}

}  // namespace

LatencyTable ParseLatency(std::string_view text) {
  std::vector<LatencyTable::Point> points;
  std::set<std::pair<int64_t, int64_t>> seen;
  for (size_t comma = 0; comma != std::string_view::npos;) {
    comma = text.find(',');
    const std::string_view point = text.substr(0, comma);
    if (comma != std::string_view::npos) text.remove_prefix(comma + 1);
    const size_t first = point.find(':');
    const size_t second = first == std::string_view::npos ? first : point.find(':', first + 1);
    if (second == std::string_view::npos) {
      throw std::invalid_argument("latency_us: '" + std::string(point) + "' is not length:batch:us");
    }
    const int64_t length = ParseNumber(point.substr(0, first), point, 1, kLongest);
    const int64_t batch = ParseNumber(point.substr(first + 1, second - first - 1), point, 1, kMostRows);
    const int64_t us = ParseNumber(point.substr(second + 1), point, 0, kSlowestUs);
    if (!seen.emplace(length, batch).second) {
      throw std::invalid_argument("latency_us: '" + std::string(point) +
                                  "' is a second point for its length and batch");
    }
    points.push_back({length, batch, us * 1000});
  }
  return LatencyTable(std::move(points));
}

}  // namespace arlo::triton
