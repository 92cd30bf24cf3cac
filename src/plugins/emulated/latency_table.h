#ifndef ARLO_PLUGINS_EMULATED_LATENCY_TABLE_H_
#define ARLO_PLUGINS_EMULATED_LATENCY_TABLE_H_

#include <string_view>

#include "base/latency_table.h"

namespace arlo::triton {

// Parses the text form of a table: points `length:batch:us` joined by commas, for example "64:1:1150,512:1:4860". For
// the interpolation see LatencyTable. Throws std::invalid_argument with the reason for other text.
LatencyTable ParseLatency(std::string_view text);

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_EMULATED_LATENCY_TABLE_H_
