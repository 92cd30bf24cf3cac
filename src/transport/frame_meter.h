// What a client's HTTP/2 frames cost, read off their heads before anything is done for them (RFC 9113, 4.1).
//
// nghttp2 says nothing of frames that it ignores or that are not whole yet, and these are what slow and hostile clients
// send.
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
    // DATA without bytes, PRIORITY, unknown types, WINDOW_UPDATE that nothing was sent for; within `span`
    std::uint32_t empty_frames = 1000;
    TimeNs span = 10'000'000'000;
    std::size_t header_block_bytes = 64 << 10;
    TimeNs header_time = 10'000'000'000;  // for a block of headers or a small frame, from its first byte to its last
    TimeNs data_time = 60'000'000'000;    // for a frame of DATA
  };

  explicit FrameMeter(const Limits& limits) : limits_(limits) {}

  // Bytes that have come. A limit that is exceeded, for people; empty: none is.
  std::string_view feed(std::string_view bytes, TimeNs now);
  // The client was sent a frame of DATA, and may widen windows for it.
  void sent_data() { updates_ += kUpdatesOfData; }
  // The same for what is not whole yet.
  [[nodiscard]] std::string_view overdue(TimeNs now) const;
  // Part of something is there, and its rest is not.
  [[nodiscard]] bool within() const { return since_ != 0; }
  // The client has said hello: the preface, and its settings.
  [[nodiscard]] bool greeted() const { return greeted_; }

 private:
  static constexpr std::uint64_t kUpdatesOfData = 10;  // WINDOW_UPDATE, as clients read a frame in pieces
  static constexpr std::uint64_t kUpdatesOfStream = 2;

  // How often something came within the span.
  struct Rate {
    std::uint32_t count = 0;
    TimeNs since = 0;
  };

  std::string_view begin(TimeNs now);  // a frame whose head is there
  bool above(Rate& rate, std::uint32_t limit, TimeNs now) const;

  const Limits limits_;
  std::size_t preface_left_ = 24;
  std::array<std::uint8_t, 9> head_{};
  std::size_t have_ = 0;   // of the head
  std::size_t left_ = 0;   // of the frame after it
  std::size_t block_ = 0;  // bytes of the block of headers that is open
  bool in_block_ = false;  // it is
  bool in_data_ = false;
  bool greeted_ = false;
  TimeNs since_ = 0;
  std::uint64_t updates_ = 0;  // that the client may send
  Rate pings_, empty_;
};

}  // namespace arlo::transport
