#include "dispatch/cost_model.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace arlo::dispatch {
namespace {

constexpr TimeNs kLongest = 3'600'000'000'000;  // an hour: keeps every product below in 64 bits

// The line through (x0, y0) and (x1, y1) at x, x0 < x1.
TimeNs line(std::int64_t x0, TimeNs y0, std::int64_t x1, TimeNs y1, std::int64_t x) {
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

}  // namespace

CostModel::CostModel(const RuntimeSpec& spec)
    : max_length_(spec.max_length), max_batch_(spec.max_batch), dynamic_(spec.dynamic) {
  if (spec.latency.empty()) throw std::invalid_argument("latency: at least one point is needed");
  std::vector<LatencyPoint> points = spec.latency;
  std::sort(points.begin(), points.end(), [](const LatencyPoint& a, const LatencyPoint& b) {
    return a.batch != b.batch ? a.batch < b.batch : a.length < b.length;
  });
  for (const LatencyPoint& p : points) {
    if (p.length < 1 || p.length > kMaxLength) {
      throw std::invalid_argument("latency: length " + std::to_string(p.length) + " is not in 1 to 1048576 tokens");
    }
    if (p.batch < 1 || p.batch > kMaxBatch) {
      throw std::invalid_argument("latency: batch " + std::to_string(p.batch) + " is not in 1 to 65536 rows");
    }
    if (p.latency < 0 || p.latency > kLongest) {
      throw std::invalid_argument("latency: " + std::to_string(p.latency) + " ns is not in 0 to one hour");
    }
    if (curves_.empty() || curves_.back().batch != p.batch) curves_.push_back({p.batch, {}});
    std::vector<Point>& curve = curves_.back().points;
    if (!curve.empty() && curve.back().length == p.length) {
      throw std::invalid_argument("latency: two points for length " + std::to_string(p.length) + ", batch " +
                                  std::to_string(p.batch));
    }
    curve.push_back({p.length, p.latency});
  }
  alone_ = at(max_length_, 1);
  share_ = at(max_length_, max_batch_) / max_batch_;
}

TimeNs CostModel::Curve::at(std::int32_t length) const {
  const auto above = std::lower_bound(points.begin(), points.end(), length,
                                      [](const Point& p, std::int32_t l) { return p.length < l; });
  if (above == points.begin()) return points.front().latency;
  if (above == points.end()) return points.back().latency;
  const Point& below = *(above - 1);
  return line(below.length, below.latency, above->length, above->latency, length);
}

TimeNs CostModel::at(std::int32_t length, std::int32_t batch) const {
  const std::int32_t tokens = dynamic_ ? length : max_length_;
  const auto above = std::lower_bound(curves_.begin(), curves_.end(), batch,
                                      [](const Curve& c, std::int32_t b) { return c.batch < b; });
  if (above == curves_.begin()) return above->at(tokens);
  if (above == curves_.end()) {
    const Curve& largest = curves_.back();
    return largest.at(tokens) * std::min(batch, kMaxBatch) / largest.batch;
  }
  const Curve& below = *(above - 1);
  return line(below.batch, below.at(tokens), above->batch, above->at(tokens), batch);
}

}  // namespace arlo::dispatch
