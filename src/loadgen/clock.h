// The load generator's one clock: microseconds of the monotonic clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace arlo::loadgen {

using Clock = std::chrono::steady_clock;

inline int64_t MicrosSince(Clock::time_point origin, Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::microseconds>(at - origin).count();
}

}  // namespace arlo::loadgen
