// Instants and durations.
#pragma once

#include <cstdint>
#include <limits>

namespace arlo {

using TimeNs = std::int64_t;  // an instant or a duration, nanoseconds, from any fixed origin
inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

}  // namespace arlo
