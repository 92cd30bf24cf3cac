// One record per request, written as a NumPy structured array (.npy), read by arlo/replay/records.py.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace arlo::loadgen {

using Clock = std::chrono::steady_clock;

inline int64_t MicrosSince(Clock::time_point origin, Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::microseconds>(at - origin).count();
}

inline constexpr uint8_t kNotSent = 255;

#pragma pack(push, 1)
struct Record {
  uint32_t index = 0;        // of the plan's entry (open) or in order of sending (closed)
  uint32_t payload = 0;      // of the plan
  int64_t scheduled_us = 0;  // all three from the start; closed loop: scheduled = sent
  int64_t sent_us = 0;
  int64_t done_us = 0;
  uint8_t code = kNotSent;  // gRPC status code
  uint8_t error = 0;        // 0: none; else place (from 1) in the final report's `errors`
  int8_t demoted = -1;      // what the response's parameters say; -1: nothing
  int8_t reserved = 0;
  int32_t level = -1;
  int64_t queue_us = -1;
  int64_t execute_us = -1;
  int64_t total_us = -1;
  int64_t computed_tokens = -1;
  int32_t max_length = -1;  // of the level
};
#pragma pack(pop)
static_assert(sizeof(Record) == 76);

// Writes those that were sent, ordered by index. Throws std::runtime_error.
void WriteRecords(const std::string& path, std::vector<Record> records);

// Fills level, max_length, demoted, queue_us, execute_us, total_us and computed_tokens where the response has them.
// False when the bytes are not a protobuf message.
bool ScanResponse(std::string_view bytes, Record* record);

}  // namespace arlo::loadgen
