// gRPC over HTTP/2, without HTTP/2: messages in a stream's bytes, statuses and timeouts as header text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/time.h"

namespace arlo::transport {

// Memory for large data that may never be complete, such as a message that a client sends slowly or does not end.
//
// It consists of separately mapped blocks, so it grows without copying and returns to the system bit by bit. Returning
// a GB at once blocks a thread for 80 ms, whichever thread frees it.
class Blocks {
 public:
  static constexpr std::size_t kBytes = 128 << 10;

  Blocks() = default;
  ~Blocks() { clear(); }
  Blocks(Blocks&& other) noexcept : blocks_(std::move(other.blocks_)), size_(std::exchange(other.size_, 0)) {}
  Blocks& operator=(Blocks&& other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(size_, other.size_);
    return *this;
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  void append(std::string_view bytes);  // throws std::bad_alloc
  void clear();
  std::string take();  // all bytes; empties it. 50 MB take 40 ms: not for a thread that serves others
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t held() const { return blocks_.size() * kBytes; }

 private:
  static void release(char* block);

  std::vector<char*> blocks_;
  std::size_t size_ = 0;
};

// The free blocks of the calling thread. Threads without this object return blocks at once.
class FreeBlocks {
 public:
  FreeBlocks();
  ~FreeBlocks();
  FreeBlocks(const FreeBlocks&) = delete;
  FreeBlocks& operator=(const FreeBlocks&) = delete;

  // Returns a few blocks to the system and keeps a few. False: no more to return.
  bool give_back();

 private:
  friend class Blocks;
  std::vector<char*> free_;
  static thread_local constinit FreeBlocks* here_;
};

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

// Encodes `grpc-message`: bytes other than printable ASCII, and '%', become %XX of UTF-8 bytes. percent_decoded() of
// base/ascii.h decodes it.
std::string percent_encoded(std::string_view text);

// About thirty years, so that now plus this does not overflow.
inline constexpr TimeNs kLongestTimeout = 1'000'000'000'000'000'000;
// Parses `grpc-timeout`: up to eight digits and a unit (H, M, S, m, u, n), capped at that; nothing for other text.
std::optional<TimeNs> parse_timeout(std::string_view text);

// Compression of gRPC messages and HTTP bodies.

inline constexpr std::string_view kEncodings = "identity,deflate,gzip";

enum class Opened : std::uint8_t { kOk, kUnknownEncoding, kMalformed, kTooLarge };

// Decompresses. `encoding`: gzip or deflate (zlib's format), in any case. Never writes more than `most_bytes`, so an
// expanding message costs its sender no more than that. `*out` is empty unless kOk is returned.
Opened open(std::string_view encoding, std::string_view message, std::size_t most_bytes, std::string* out);

// Compresses with gzip, quickly. Empty on failure.
std::string packed(std::string_view bytes);

}  // namespace arlo::transport
