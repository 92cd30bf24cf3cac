// The one place that reads clocks.
#pragma once

#include <cstdint>
#include <ctime>

#include "base/time.h"

namespace arlo {

// CLOCK_MONOTONIC, which is also gRPC's GPR_CLOCK_MONOTONIC: deadlines pass between the two unchanged.
inline TimeNs now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return TimeNs{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Since 1970, for records that people read, and that others compare with theirs.
inline std::uint64_t unix_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}
inline std::uint64_t unix_ms() { return unix_ns() / 1'000'000; }

}  // namespace arlo
