// The requests of a run and their times: one file written by arlo/replay/plan.py, mapped into memory and never copied.
//
// Little endian: 8 bytes "ARLOPLN1", uint64 entries, uint64 payloads, then
//   int64  send_at_us[entries]   from the start, ascending
//   uint32 payload[entries]      index of the payload
//   int64  timeout_us[entries]   deadline, counted from send_at_us; 0: none
//   uint64 offset[payloads + 1]  into the bytes that follow
//   bytes                        serialised ModelInferRequests
// (uint32 arrays are padded to 8 bytes.) A closed-loop plan has 0 entries.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace arlo::loadgen {

// Owns the mapping; the views live as long as it. Immutable, so any thread may read it.
class Plan {
 public:
  // Throws std::runtime_error when the file is missing or not a plan.
  explicit Plan(const std::string& path);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  size_t entries() const { return send_at_us_.size(); }
  size_t payloads() const { return offset_.size() - 1; }
  int64_t send_at_us(size_t i) const { return send_at_us_[i]; }
  uint32_t payload_of(size_t i) const { return payload_[i]; }
  int64_t timeout_us(size_t i) const { return timeout_us_[i]; }
  std::string_view payload(size_t p) const { return {bytes_ + offset_[p], offset_[p + 1] - offset_[p]}; }

 private:
  void Parse(const std::string& path);

  const char* map_ = nullptr;
  size_t size_ = 0;
  std::span<const int64_t> send_at_us_;
  std::span<const uint32_t> payload_;
  std::span<const int64_t> timeout_us_;
  std::span<const uint64_t> offset_;
  const char* bytes_ = nullptr;
};

}  // namespace arlo::loadgen
