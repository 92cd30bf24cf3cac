#include "gateway/desk/latency_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace arlo::gateway {
namespace {
constexpr int kSubBits = 5;
constexpr std::uint64_t kSub = 1U << kSubBits;
}  // namespace

std::size_t LatencyWindow::bucket(std::uint64_t us) {
  if (us < kSub) return us;
  const int power = 63 - std::countl_zero(us);
  const std::uint64_t sub = (us >> (power - kSubBits)) & (kSub - 1);
  return std::min<std::size_t>(static_cast<std::size_t>(power - kSubBits + 1) * kSub + sub, kBuckets - 1);
}

std::uint64_t LatencyWindow::middle(std::size_t index) {
  if (index < kSub) return index;
  const auto power = index / kSub - 1;
  const std::uint64_t width = std::uint64_t{1} << power;
  return ((index % kSub) + kSub) * width + (width - 1) / 2;
}

void LatencyWindow::record(std::uint64_t us, TimeNs now) {
  const std::int64_t second = now / 1'000'000'000;
  auto& slot = slots_[static_cast<std::size_t>(second % kSlots)];
  if (slot.second != second) {
    slot.second = second;
    slot.count = slot.sum_us = slot.max_us = 0;
    slot.buckets.assign(kBuckets, 0);
  }
  ++slot.count;
  slot.sum_us += us;
  slot.max_us = std::max(slot.max_us, us);
  ++slot.buckets[bucket(us)];
}

LatencyWindow::Summary LatencyWindow::summary(TimeNs now) const {
  const std::int64_t second = now / 1'000'000'000;
  std::vector<std::uint64_t> total(kBuckets, 0);
  Summary out;
  std::uint64_t sum = 0;
  for (const auto& slot : slots_) {
    if (slot.second < 0 || slot.second <= second - static_cast<std::int64_t>(kSlots)) continue;
    out.count += slot.count;
    sum += slot.sum_us;
    out.max_us = std::max(out.max_us, slot.max_us);
    for (std::size_t i = 0; i < kBuckets; ++i) total[i] += slot.buckets[i];
  }
  if (out.count == 0) return out;
  out.mean_us = sum / out.count;
  auto at = [&](double quantile) {
    const auto rank = static_cast<std::uint64_t>(std::ceil(quantile * static_cast<double>(out.count)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += total[i];
      if (seen >= rank) return std::min(middle(i), out.max_us);
    }
    return out.max_us;
  };
  out.p50_us = at(0.50);
  out.p90_us = at(0.90);
  out.p98_us = at(0.98);
  out.p99_us = at(0.99);
  return out;
}

std::size_t LatencyBuckets::bucket(double seconds) {
  return static_cast<std::size_t>(std::lower_bound(kBoundsS.begin(), kBoundsS.end(), seconds) - kBoundsS.begin());
}

void LatencyBuckets::exemplify(std::uint64_t us, const std::string& trace_id, std::uint64_t at_unix_ms) {
  const double seconds = static_cast<double>(us) * 1e-6;
  exemplars_.resize(kBoundsS.size() + 1);
  exemplars_[bucket(seconds)] = {trace_id, seconds, static_cast<double>(at_unix_ms) * 1e-3};
}

void LatencyBuckets::record(std::uint64_t us) {
  ++counts_[bucket(static_cast<double>(us) * 1e-6)];
  ++count_;
  sum_us_ += us;
}

}  // namespace arlo::gateway
