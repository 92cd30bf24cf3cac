#include "simulate/histogram.h"

namespace arlo::simulate {

double Histogram::quantile(double q) const {
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

}  // namespace arlo::simulate
