#ifndef ARLO_PLUGINS_EMULATED_LATENCY_TABLE_H_
#define ARLO_PLUGINS_EMULATED_LATENCY_TABLE_H_

#include <string_view>

#include "base/latency_table.h"

namespace arlo::triton {

// The table in its text form: points `length:batch:us` joined by commas, for example "64:1:1150,512:1:4860". It is read
// as everybody reads one, see LatencyTable. Throws std::invalid_argument, saying what is wrong, for other text.
LatencyTable ParseLatency(std::string_view text);

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_EMULATED_LATENCY_TABLE_H_
