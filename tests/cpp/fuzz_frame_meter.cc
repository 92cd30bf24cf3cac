// Any bytes of a client: libFuzzer over FrameMeter. However they come, it counts what a plain reading of the frames'
// heads counts.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "transport/frame_meter.h"

namespace {

using namespace arlo::transport;  // NOLINT(google-build-using-namespace): a program of one file

void need(bool what) {
  if (!what) std::abort();
}

constexpr std::size_t kPreface = 24;
constexpr std::size_t kHead = 9;
constexpr arlo::TimeNs kNow = 1'000'000'000;
constexpr arlo::TimeNs kLate = kNow + 3'600'000'000'000;

struct Seen {
  std::string_view limit;
  bool greeted = false;
  std::string_view overdue;
};

Seen read_plainly(std::string_view bytes, const FrameMeter::Limits& limits) {
  Seen seen;
  std::uint32_t pings = 0, empty = 0, updates = 0;
  std::size_t block = 0;
  bool open = false;  // a block of headers
  bytes.remove_prefix(std::min(kPreface, bytes.size()));
  for (;;) {
    if (bytes.size() < kHead) {
      if (!bytes.empty() || open) seen.overdue = "time for headers";
      return seen;
    }
    std::size_t left = 0;
    for (const char each : bytes.substr(0, 3)) left = 256 * left + static_cast<unsigned char>(each);
    const auto type = static_cast<unsigned char>(bytes[3]);
    const auto flags = static_cast<unsigned char>(bytes[4]);
    if (type == 0 && left == 0 && (flags & 1) == 0) ++empty;
    if (type == 2 || type > 9 || (type == 9 && left == 0)) ++empty;
    if (type == 8 && updates == 0) ++empty;
    if (type == 8 && updates > 0) --updates;
    if ((type == 4 || type == 6) && (flags & 1) == 0) ++pings;
    if (type == 4) seen.greeted = true;
    if (type == 1) block = 0;
    if (type == 1) updates += 2;
    if (type == 1 || type == 9) {
      block += left;
      open = (flags & 4) == 0;
      if (block > limits.header_block_bytes) seen.limit = "bytes of headers";
    }
    if (empty > limits.empty_frames && seen.limit.empty()) seen.limit = "empty frames";
    if (pings > limits.pings) seen.limit = "pings and settings";
    if (!seen.limit.empty()) return seen;
    bytes.remove_prefix(kHead);
    if (bytes.size() < left) {
      seen.overdue = type == 0 ? "time for a request" : "time for headers";
      return seen;
    }
    bytes.remove_prefix(left);
  }
}

}  // namespace

// The first byte says in what pieces the rest comes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t piece = data[0] == 0 ? size : data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  FrameMeter::Limits limits;
  limits.pings = limits.empty_frames = 3;
  limits.header_block_bytes = 64;
  FrameMeter meter(limits);
  std::string_view told;
  for (std::size_t at = 0; at < bytes.size() && told.empty(); at += piece) {
    told = meter.feed(bytes.substr(at, piece), kNow);
  }
  const Seen seen = read_plainly(bytes, limits);
  need(told == seen.limit && meter.greeted() == seen.greeted);
  if (!told.empty()) return 0;
  need(meter.within() == !seen.overdue.empty());
  need(meter.overdue(kNow).empty() && meter.overdue(kLate) == seen.overdue);
  return 0;
}
