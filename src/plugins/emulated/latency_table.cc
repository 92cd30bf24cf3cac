#include "plugins/emulated/latency_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <string>

namespace arlo::triton {
namespace {

int64_t ParseNumber(std::string_view text, std::string_view point, int64_t minimum) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum) {
    throw std::invalid_argument("latency_us: '" + std::string(point) +
                                "' is not length:batch:us with length and batch at least 1 and us at least 0");
  }
  return value;
}

// Linear between the points of `points`, constant before the first and after the last.
double AtLength(const std::map<int64_t, int64_t>& points, int64_t length) {
  const auto above = points.lower_bound(length);
  if (above == points.end()) return static_cast<double>(std::prev(above)->second);
  if (above->first == length || above == points.begin()) return static_cast<double>(above->second);
  const auto below = std::prev(above);
  const double share = static_cast<double>(length - below->first) / static_cast<double>(above->first - below->first);
  return static_cast<double>(below->second) + share * static_cast<double>(above->second - below->second);
}

}  // namespace

LatencyTable LatencyTable::Parse(std::string_view text) {
  LatencyTable table;
  for (size_t comma = 0; comma != std::string_view::npos;) {
    comma = text.find(',');
    const std::string_view point = text.substr(0, comma);
    if (comma != std::string_view::npos) text.remove_prefix(comma + 1);
    const size_t first = point.find(':');
    const size_t second = first == std::string_view::npos ? first : point.find(':', first + 1);
    if (second == std::string_view::npos) {
      throw std::invalid_argument("latency_us: '" + std::string(point) + "' is not length:batch:us");
    }
    const int64_t length = ParseNumber(point.substr(0, first), point, 1);
    const int64_t batch = ParseNumber(point.substr(first + 1, second - first - 1), point, 1);
    table.by_batch_[batch][length] = ParseNumber(point.substr(second + 1), point, 0);
  }
  return table;
}

int64_t LatencyTable::LatencyNs(int64_t length, int64_t rows) const {
  const auto above = by_batch_.lower_bound(rows);
  double us = 0;
  if (above == by_batch_.end()) {
    const auto last = std::prev(above);
    us = AtLength(last->second, length) * static_cast<double>(rows) / static_cast<double>(last->first);
  } else if (above->first == rows || above == by_batch_.begin()) {
    us = AtLength(above->second, length);
  } else {
    const auto below = std::prev(above);
    const double low = AtLength(below->second, length);
    const double share = static_cast<double>(rows - below->first) / static_cast<double>(above->first - below->first);
    us = low + share * (AtLength(above->second, length) - low);
  }
  return std::llround(us * 1000.0);
}

int64_t LatencyTable::max_length() const {
  int64_t longest = 0;
  for (const auto& [batch, points] : by_batch_) longest = std::max(longest, points.rbegin()->first);
  return longest;
}

}  // namespace arlo::triton
