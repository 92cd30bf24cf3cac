// Checks of the engine's arguments; all throw std::invalid_argument with the field's name.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>

#include "simulate/types.h"

namespace arlo::simulate {

inline constexpr TimeNs kFar = TimeNs{1} << 61;  // the scheduler's range of times

inline void need(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}
// Builds no message while the condition holds: it runs for each arrival.
inline void need(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

inline void need_duration(TimeNs value, const char* field, TimeNs least = 0) {
  need(value >= least && value < kFar,
       std::string(field) + ": " + std::to_string(value) + " is not in " + std::to_string(least) + " to 2^61 ns");
}

// Large enough for everything that is slow, and no execution time leaves the range of times because of it.
inline void need_factor(double value, const char* field) {
  need(std::isfinite(value) && value > 0 && value <= 1e6,
       std::string(field) + ": " + std::to_string(value) + " is not above 0 and at most 1e6");
}

inline Options checked(Options options) {
  need_duration(options.slo, "slo", 1);
  if (options.timeout != kNever) need_duration(options.timeout, "timeout", 1);
  need_duration(options.overhead, "overhead");
  need_duration(options.hop_out, "hop_out");
  need_duration(options.hop_back, "hop_back");
  need_duration(options.warmup, "warmup");
  need(options.retries >= 0, "retries: " + std::to_string(options.retries) + " is not at least 0");
  need(options.bulk_share >= 0 && options.bulk_share <= 1, "bulk_share: not in 0 to 1");
  need(options.noise.size() <= (1U << 20), "noise: more than 2^20 quantiles");
  for (const double factor : options.noise) need_factor(factor, "noise");
  return options;
}

}  // namespace arlo::simulate
