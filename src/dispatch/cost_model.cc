#include "dispatch/cost_model.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace arlo::dispatch {
namespace {

constexpr std::int32_t kTabled = 1024;          // rows up to which a table of times is kept
constexpr TimeNs kNextToNothing = 50;           // a fiftieth of the time of a row
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
  saturated_ = efficient_ = max_batch_;
  if (dynamic_) return;
  const std::int32_t rows = std::min(max_batch_, kTabled);
  std::vector<TimeNs> by_rows;
  for (std::int32_t batch = 1; batch <= rows; ++batch) by_rows.push_back(table_.at(max_length_, batch));
  by_rows_ = std::move(by_rows);
  TimeNs best = share_;
  for (std::int32_t batch = 1; batch <= rows; ++batch) best = std::min(best, at(max_length_, batch) / batch);
  for (std::int32_t batch = rows; batch >= 1; --batch) {
    if (at(max_length_, batch) / batch <= best + best / kNextToNothing) saturated_ = batch;
    if (at(max_length_, batch) / batch <= best + best / 4) efficient_ = batch;
  }
}

Bundle::Bundle(std::vector<Member> members) : members_(std::move(members)) {
  std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
    const std::int32_t first = a.cost.max_length(), second = b.cost.max_length();
    return first != second ? first < second : a.runtime < b.runtime;
  });
  if (members_.size() == 1) return;
  of_length_.resize(static_cast<std::size_t>(longest()) + 1);
  for (std::int32_t length = 1; length <= longest(); ++length) {
    std::size_t best = members_.size();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].cost.max_length() < length) continue;
      if (best == members_.size() || members_[i].cost.share(length) < members_[best].cost.share(length)) best = i;
    }
    of_length_[static_cast<std::size_t>(length)] = static_cast<std::uint16_t>(best);
  }
}

}  // namespace arlo::dispatch
