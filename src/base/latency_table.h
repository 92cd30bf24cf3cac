// Reads a latency table: the only implementation in C++, equal to arlo/catalog/latency.py to the nanosecond. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/time.h"

namespace arlo {

// The latency of a whole batch, by tokens and rows. One curve over the length for each measured batch. Between two
// lengths linear, outside them flat; between two measured batches linear, below the smallest flat, above the largest in
// proportion to the rows (as if run in turns). Whole nanoseconds, fractions cut off. Values stay below what keeps their
// products in 64 bits: an hour, 2^20 tokens, 2^16 rows.
class LatencyTable {
 public:
  struct Point {
    std::int64_t length;
    std::int64_t batch;
    TimeNs latency;
  };

  LatencyTable() = default;
  // At least one point, no two for the same length and batch.
  explicit LatencyTable(std::vector<Point> points) {
    std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
      return a.batch != b.batch ? a.batch < b.batch : a.length < b.length;
    });
    for (const Point& p : points) {
      if (curves_.empty() || curves_.back().batch != p.batch) curves_.push_back({p.batch, {}});
      curves_.back().points.emplace_back(p.length, p.latency);
    }
  }

  // Time of a batch of `rows` rows of `length` tokens.
  [[nodiscard]] TimeNs at(std::int64_t length, std::int64_t rows) const {
    const auto above = std::lower_bound(curves_.begin(), curves_.end(), rows,
                                        [](const Curve& c, std::int64_t r) { return c.batch < r; });
    if (above == curves_.begin()) return above->at(length);
    if (above == curves_.end()) return curves_.back().at(length) * rows / curves_.back().batch;
    const Curve& below = *(above - 1);
    return line(below.batch, below.at(length), above->batch, above->at(length), rows);
  }

  // The longest length that has a point.
  [[nodiscard]] std::int64_t max_length() const {
    std::int64_t longest = 0;
    for (const Curve& curve : curves_) longest = std::max(longest, curve.points.back().first);
    return longest;
  }

 private:
  struct Curve {
    std::int64_t batch;
    std::vector<std::pair<std::int64_t, TimeNs>> points;  // by length

    [[nodiscard]] TimeNs at(std::int64_t length) const {
      const auto above = std::lower_bound(points.begin(), points.end(), length,
                                          [](const auto& point, std::int64_t l) { return point.first < l; });
      if (above == points.begin()) return above->second;
      if (above == points.end()) return points.back().second;
      const auto& below = *(above - 1);
      return line(below.first, below.second, above->first, above->second, length);
    }
  };

  // The line through (x0, y0) and (x1, y1) at x, x0 < x1.
  static TimeNs line(std::int64_t x0, TimeNs y0, std::int64_t x1, TimeNs y1, std::int64_t x) {
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
  }

  std::vector<Curve> curves_;  // by batch
};

}  // namespace arlo
