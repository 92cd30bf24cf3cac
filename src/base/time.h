// Instants and durations.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace arlo {

using TimeNs = std::int64_t;  // an instant or a duration, nanoseconds, from any fixed origin
inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
inline constexpr TimeNs kMs = 1'000'000;

// Returns whole milliseconds, for messages.
inline std::string in_ms(TimeNs ns) { return std::to_string(ns / kMs) + " ms"; }

}  // namespace arlo
