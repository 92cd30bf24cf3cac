// Reads the few parameters we record out of a serialised ModelInferResponse without parsing its tensors.
#pragma once

#include <cstdint>
#include <string_view>

#include "loadgen/records.h"

namespace arlo::loadgen {

// Fills level, max_length, demoted, queue_us, execute_us, total_us and computed_tokens where the response has them.
// False when the bytes are not a protobuf message.
bool ScanResponse(std::string_view bytes, Record* record);

}  // namespace arlo::loadgen
