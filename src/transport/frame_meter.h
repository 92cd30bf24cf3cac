// Measures the cost of a client's HTTP/2 frames from their headers, before they are processed (RFC 9113, 4.1).
//
// nghttp2 does not report frames that it ignores or that are incomplete, and slow and hostile clients send just these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/time.h"

namespace arlo::transport {

class FrameMeter {
 public:
  struct Limits {
    std::uint32_t pings = 1000;  // and SETTINGS, within `span`
    // DATA without bytes, PRIORITY, unknown types, WINDOW_UPDATE without sent data; within `span`
    std::uint32_t empty_frames = 1000;
    TimeNs span = 10'000'000'000;
    std::size_t header_block_bytes = 64 << 10;
    TimeNs header_time = 10'000'000'000;  // for a header block or a small frame, from its first byte to its last
    TimeNs data_time = 60'000'000'000;    // for a DATA frame
  };

  explicit FrameMeter(const Limits& limits) : limits_(limits) {}

  // Takes received bytes. Returns an exceeded limit as text for people; empty: none.
  std::string_view feed(std::string_view bytes, TimeNs now);
  // The client was sent a DATA frame, and may widen windows for it.
  void sent_data() { updates_ += kUpdatesOfData; }
  // The same for incomplete frames.
  [[nodiscard]] std::string_view overdue(TimeNs now) const;
  // Whether a frame or block is incomplete.
  [[nodiscard]] bool within() const { return since_ != 0; }
  // Whether the client has sent the preface and its settings.
  [[nodiscard]] bool greeted() const { return greeted_; }

 private:
  static constexpr std::uint64_t kUpdatesOfData = 10;  // WINDOW_UPDATE frames, as clients read a frame in pieces
  static constexpr std::uint64_t kUpdatesOfStream = 2;

  // Counts events within the span.
  struct Rate {
    std::uint32_t count = 0;
    TimeNs since = 0;
  };

  std::string_view begin(TimeNs now);  // a frame whose header is complete
  bool above(Rate& rate, std::uint32_t limit, TimeNs now) const;

  const Limits limits_;
  std::size_t preface_left_ = 24;
  std::array<std::uint8_t, 9> head_{};
  std::size_t have_ = 0;   // in the frame header
  std::size_t left_ = 0;   // in the frame after it
  std::size_t block_ = 0;  // bytes of the open header block
  bool in_block_ = false;  // a header block is open
  bool in_data_ = false;
  bool greeted_ = false;
  TimeNs since_ = 0;
  std::uint64_t updates_ = 0;  // allowed for the client
  Rate pings_, empty_;
};

}  // namespace arlo::transport
