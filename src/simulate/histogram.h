// Latencies counted in buckets of equal ratio: memory does not grow with their number.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "dispatch/scheduler.h"

namespace arlo::simulate {

using dispatch::TimeNs;

// Where values lie: exact up to 2^(kBits + 1), from there on 2^kBits buckets to each doubling.
template <int kBits>
struct Buckets {
  static std::size_t of(TimeNs value) {
    const auto v = static_cast<std::uint64_t>(std::max<TimeNs>(value, 0));
    const int shift = std::max(0, static_cast<int>(std::bit_width(v)) - (kBits + 1));
    return (static_cast<std::size_t>(shift) << kBits) + static_cast<std::size_t>(v >> shift);
  }
  // Least value of a bucket; the largest time for those above all times.
  static TimeNs lower(std::size_t bucket) {
    constexpr std::size_t kExact = std::size_t{2} << kBits;
    if (bucket < kExact) return static_cast<TimeNs>(bucket);
    const std::size_t shift = (bucket >> kBits) - 1;
    if (shift > 62 - kBits) return std::numeric_limits<TimeNs>::max();
    return static_cast<TimeNs>((bucket - (shift << kBits)) << shift);
  }
};

// Quantiles are exact to 1 part in 1024.
class Histogram {
 public:
  using Bucket = Buckets<10>;

  void add(TimeNs value) {
    const std::size_t bucket = Bucket::of(value);
    if (bucket >= counts_.size()) counts_.resize(bucket + 1);
    ++counts_[bucket];
    ++count_;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] TimeNs max() const { return count_ == 0 ? 0 : max_; }
  // Value at quantile q, clamped to [0, 1]: values are taken as spread evenly over their bucket, and none lies below
  // the least or above the largest one added. 0 when empty.
  [[nodiscard]] double quantile(double q) const {
    if (count_ == 0) return 0;
    const double rank = std::clamp(q, 0.0, 1.0) * static_cast<double>(count_ - 1);
    if (rank <= 0) return static_cast<double>(min_);
    if (rank >= static_cast<double>(count_ - 1)) return static_cast<double>(max_);
    double before = 0;
    for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      const auto here = static_cast<double>(counts_[bucket]);
      if (here > 0 && rank < before + here) {
        const auto low = static_cast<double>(Bucket::lower(bucket));
        const auto high = static_cast<double>(Bucket::lower(bucket + 1));
        const double value = low + (high - low) * std::min((rank - before + 0.5) / here, 1.0);
        return std::clamp(value, static_cast<double>(min_), static_cast<double>(max_));
      }
      before += here;
    }
    return static_cast<double>(max_);
  }
  [[nodiscard]] const std::vector<std::uint64_t>& counts() const { return counts_; }

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  TimeNs min_ = std::numeric_limits<TimeNs>::max();
  TimeNs max_ = 0;
};

}  // namespace arlo::simulate
