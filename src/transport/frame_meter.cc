#include "transport/frame_meter.h"

#include <algorithm>

namespace arlo::transport {
namespace {

enum Type : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9
};
constexpr std::uint8_t kEndStream = 1;
constexpr std::uint8_t kAck = 1;
constexpr std::uint8_t kEndHeaders = 4;

}  // namespace

bool FrameMeter::above(Rate& rate, std::uint32_t limit, TimeNs now) const {
  if (now - rate.since > limits_.span) rate = {0, now};
  return ++rate.count > limit;
}

std::string_view FrameMeter::feed(std::string_view bytes, TimeNs now) {
  while (!bytes.empty()) {
    if (preface_left_ > 0) {
      const std::size_t some = std::min(preface_left_, bytes.size());
      preface_left_ -= some;
      bytes.remove_prefix(some);
      continue;
    }
    if (left_ > 0) {
      const std::size_t some = std::min(left_, bytes.size());
      left_ -= some;
      bytes.remove_prefix(some);
      if (left_ == 0 && !in_block_) since_ = 0;
      continue;
    }
    if (since_ == 0) since_ = now;
    const std::size_t some = std::min(head_.size() - have_, bytes.size());
    std::copy_n(bytes.begin(), some, head_.begin() + static_cast<std::ptrdiff_t>(have_));
    have_ += some;
    bytes.remove_prefix(some);
    if (have_ < head_.size()) break;
    have_ = 0;
    if (const auto limit = begin(now); !limit.empty()) return limit;
    if (left_ == 0 && !in_block_) since_ = 0;
  }
  return {};
}

std::string_view FrameMeter::begin(TimeNs now) {
  left_ = (std::size_t{head_[0]} << 16) | (std::size_t{head_[1]} << 8) | head_[2];
  const std::uint8_t type = head_[3];
  const std::uint8_t flags = head_[4];
  in_data_ = type == kData;
  switch (type) {
    case kData:
      if (left_ == 0 && (flags & kEndStream) == 0 && above(empty_, limits_.empty_frames, now)) return "empty frames";
      break;
    case kHeaders:
    case kContinuation:
      if (type == kHeaders) {
        block_ = 0;
        updates_ += kUpdatesOfStream;
      }
      block_ += left_;
      in_block_ = (flags & kEndHeaders) == 0;
      if (block_ > limits_.header_block_bytes) return "bytes of headers";
      if (type == kContinuation && left_ == 0 && above(empty_, limits_.empty_frames, now)) return "empty frames";
      break;
    case kSettings:
    case kPing:
      greeted_ = greeted_ || type == kSettings;
      if ((flags & kAck) == 0 && above(pings_, limits_.pings, now)) return "pings and settings";
      break;
    case kWindowUpdate:
      if (updates_ > 0) {
        --updates_;
      } else if (above(empty_, limits_.empty_frames, now)) {
        return "empty frames";
      }
      break;
    default:
      if (type == kPriority || type > kContinuation) {
        if (above(empty_, limits_.empty_frames, now)) return "empty frames";
      }
  }
  return {};
}

std::string_view FrameMeter::overdue(TimeNs now) const {
  if (since_ == 0) return {};
  if (in_data_ && left_ > 0) return now - since_ > limits_.data_time ? "time for a request" : "";
  return now - since_ > limits_.header_time ? "time for headers" : "";
}

}  // namespace arlo::transport
