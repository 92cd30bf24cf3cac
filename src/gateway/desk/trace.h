// A request's part of a distributed trace: the client's traceparent (W3C Trace Context) or a new one, and the header
// sent on to workers. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"

namespace arlo::gateway {

struct TraceParent {
  std::string trace_id;  // 32 hexadecimal digits, not all of them 0
  std::uint64_t span = 0;
  std::uint8_t flags = 0;

  static constexpr std::uint8_t kSampled = 1;
  [[nodiscard]] bool sampled() const { return (flags & kSampled) != 0; }
  [[nodiscard]] std::string text() const;
};

// Returns nothing for an invalid traceparent, which is treated as absent.
std::optional<TraceParent> read_traceparent(std::string_view text);

std::string hex_of(std::uint64_t span);  // 16 digits

// The trace of a request. `own`: its span; 0: none is made, and workers get the client's header.
struct Trace {
  TraceParent parent;  // span 0: the trace begins here
  std::uint64_t own = 0;
  std::string request_id;
  TimeNs began = 0;

  // Returns the span id of one execution of one of its rows; always the same for equal arguments.
  [[nodiscard]] std::uint64_t execution(std::uint32_t row, std::uint32_t attempt) const;
  // Returns the traceparent sent to a worker for it.
  [[nodiscard]] std::string for_worker(std::uint32_t row, std::uint32_t attempt) const;
};

}  // namespace arlo::gateway
