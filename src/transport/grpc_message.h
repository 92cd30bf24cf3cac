// gRPC over HTTP/2, without HTTP/2: messages in a stream's bytes, statuses and timeouts as header text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/time.h"
#include "transport/blocks.h"

namespace arlo::transport {

inline constexpr std::size_t kPrefixBytes = 5;

// gRPC status codes.
inline constexpr std::uint32_t kDeadlineExceeded = 4;
inline constexpr std::uint32_t kResourceExhausted = 8;
inline constexpr std::uint32_t kUnimplemented = 12;
inline constexpr std::uint32_t kInternal = 13;
inline constexpr std::uint32_t kUnavailable = 14;

// A message as received: large ones in blocks.
class Message {
 public:
  explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}
  explicit Message(Blocks blocks) : blocks_(std::move(blocks)) {}

  [[nodiscard]] std::size_t size() const { return bytes_.size() + blocks_.size(); }
  // The message in one piece, which takes a while for a large one (see Blocks::take).
  std::string& whole() {
    if (blocks_.size() != 0) bytes_ = blocks_.take();
    return bytes_;
  }

 private:
  std::string bytes_;
  Blocks blocks_;
};

// Reads consecutive messages, each with a five-byte prefix: whether it is compressed, and its length. Memory grows with
// the bytes received, so a length alone allocates nothing.
class MessageReader {
 public:
  enum class Result : std::uint8_t { kOk, kTooLarge, kMalformed };

  explicit MessageReader(std::uint32_t most_bytes) : most_bytes_(most_bytes) {}

  // Calls take(Message message, bool compressed) for each message that is complete. After any result but kOk the stream
  // must not be used.
  template <class Take>
  Result feed(std::string_view bytes, Take&& take) {
    while (!bytes.empty()) {
      if (have_ < kPrefixBytes) {
        const std::size_t some = std::min(kPrefixBytes - have_, bytes.size());
        std::copy_n(bytes.begin(), some, prefix_.begin() + static_cast<std::ptrdiff_t>(have_));
        have_ += some;
        bytes.remove_prefix(some);
        if (have_ < kPrefixBytes) return Result::kOk;
        if (const Result result = begin(); result != Result::kOk) return result;
      }
      const std::size_t some = std::min(length_ - there(), bytes.size());
      if (large()) {
        blocks_.append(bytes.substr(0, some));
      } else {
        message_.append(bytes.substr(0, some));
      }
      bytes.remove_prefix(some);
      if (there() < length_) return Result::kOk;
      have_ = 0;
      take(large() ? Message(std::exchange(blocks_, {})) : Message(std::exchange(message_, {})), compressed_);
    }
    return Result::kOk;
  }

  // Releases its memory; it must not be used afterwards.
  void drop() {
    std::string().swap(message_);
    blocks_.clear();
  }
  // Length of the message being read, or of one that was too large.
  [[nodiscard]] std::size_t length() const { return length_; }
  // Whether a message is incomplete.
  [[nodiscard]] bool within() const { return have_ > 0; }
  // The bytes held.
  [[nodiscard]] std::size_t held() const { return message_.capacity() + blocks_.held(); }

 private:
  static constexpr std::size_t kSmall = 64 << 10;  // up to this size memory is allocated at once

  Result begin();
  [[nodiscard]] bool large() const { return length_ > kSmall; }
  [[nodiscard]] std::size_t there() const { return large() ? blocks_.size() : message_.size(); }

  std::uint32_t most_bytes_;
  std::array<char, kPrefixBytes> prefix_{};
  std::size_t have_ = 0;  // in the prefix
  std::size_t length_ = 0;
  bool compressed_ = false;
  std::string message_;
  Blocks blocks_;  // for a large message
};

// The five-byte prefix of an uncompressed message.
using Prefix = std::array<char, kPrefixBytes>;
Prefix prefix_of(std::size_t length);

inline std::string_view text_of(const Prefix& prefix) { return {prefix.data(), prefix.size()}; }

// A message to send.
struct Piece {
  Prefix prefix;
  std::string bytes;
};
// Copies up to `most` bytes from offset `at`, and returns how many.
std::size_t read_piece(const Piece& piece, std::size_t at, std::uint8_t* out, std::size_t most);

// Encodes `grpc-message`: bytes other than printable ASCII, and '%', become %XX of UTF-8 bytes.
std::string percent_encoded(std::string_view text);
// Decodes it; '%' without two hexadecimal digits stays unchanged.
std::string percent_decoded(std::string_view text);

// About thirty years, so that now plus this does not overflow.
inline constexpr TimeNs kLongestTimeout = 1'000'000'000'000'000'000;
// Parses `grpc-timeout`: up to eight digits and a unit (H, M, S, m, u, n), capped at that; nothing for other text.
std::optional<TimeNs> parse_timeout(std::string_view text);

}  // namespace arlo::transport
