// Latencies in two forms: a sliding window with percentiles for people and the control plane, and fixed cumulative
// buckets for Prometheus. Not synchronised: the router's lock covers them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"

namespace arlo::gateway {

// Percentiles over the last kSlots seconds, within 3 %, from log-linear buckets, 32 per power of two; the middle of a
// bucket is reported.
class LatencyWindow {
 public:
  static constexpr std::uint32_t kSlots = 10;

  struct Summary {
    std::uint64_t count = 0;
    std::uint64_t mean_us = 0, p50_us = 0, p90_us = 0, p98_us = 0, p99_us = 0, max_us = 0;
  };

  void record(std::uint64_t us, TimeNs now);
  [[nodiscard]] Summary summary(TimeNs now) const;

 private:
  static constexpr std::size_t kBuckets = 32 * 32;
  struct Slot {
    std::int64_t second = -1;
    std::uint64_t count = 0, sum_us = 0, max_us = 0;
    std::vector<std::uint32_t> buckets;
  };
  static std::size_t bucket(std::uint64_t us);
  static std::uint64_t middle(std::size_t bucket);

  std::array<Slot, kSlots> slots_;
};

// Cumulative histogram for Prometheus. Bounds from 0.25 ms to 30 s, about two per power of two: encoders answer in
// milliseconds, queues and timeouts reach seconds, and a quantile read from the buckets is within about 20 %.
class LatencyBuckets {
 public:
  static constexpr std::array<double, 20> kBoundsS = {0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003,
                                                      0.005,   0.0075, 0.01,    0.02,  0.03,   0.05,  0.1,
                                                      0.2,     0.5,    1.0,     2.0,   5.0,    30.0};
  // The last sampled request that fell into a bucket.
  struct Exemplar {
    std::string trace_id;  // empty: none
    double value_s = 0;
    double unix_s = 0;
  };

  void record(std::uint64_t us);
  // Attaches an exemplar to the value just recorded.
  void exemplify(std::uint64_t us, const std::string& trace_id, std::uint64_t at_unix_ms);
  [[nodiscard]] const std::vector<Exemplar>& exemplars() const { return exemplars_; }  // by bucket, or empty
  [[nodiscard]] const std::array<std::uint64_t, kBoundsS.size() + 1>& counts() const { return counts_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] double sum_s() const { return static_cast<double>(sum_us_) * 1e-6; }

 private:
  static std::size_t bucket(double seconds);

  std::array<std::uint64_t, kBoundsS.size() + 1> counts_{};
  std::vector<Exemplar> exemplars_;
  std::uint64_t count_ = 0;
  std::uint64_t sum_us_ = 0;
};

}  // namespace arlo::gateway
