#include "dispatch/cost_model.h"

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace arlo::dispatch {
namespace {

constexpr TimeNs kLongest = 3'600'000'000'000;  // an hour: keeps every product below in 64 bits

}  // namespace

CostModel::CostModel(const RuntimeSpec& spec)
    : max_length_(spec.max_length), max_batch_(spec.max_batch), dynamic_(spec.dynamic) {
  if (spec.latency.empty()) throw std::invalid_argument("latency: at least one point is needed");
  std::vector<LatencyTable::Point> points;
  std::set<std::pair<std::int32_t, std::int32_t>> seen;
  for (const LatencyPoint& p : spec.latency) {
    if (p.length < 1 || p.length > kMaxLength) {
      throw std::invalid_argument("latency: length " + std::to_string(p.length) + " is not in 1 to 1048576 tokens");
    }
    if (p.batch < 1 || p.batch > kMaxBatch) {
      throw std::invalid_argument("latency: batch " + std::to_string(p.batch) + " is not in 1 to 65536 rows");
    }
    if (p.latency < 0 || p.latency > kLongest) {
      throw std::invalid_argument("latency: " + std::to_string(p.latency) + " ns is not in 0 to one hour");
    }
    if (!seen.emplace(p.length, p.batch).second) {
      throw std::invalid_argument("latency: two points for length " + std::to_string(p.length) + ", batch " +
                                  std::to_string(p.batch));
    }
    points.push_back({p.length, p.batch, p.latency});
  }
  table_ = LatencyTable(std::move(points));
  alone_ = at(max_length_, 1);
  share_ = at(max_length_, max_batch_) / max_batch_;
}

}  // namespace arlo::dispatch
