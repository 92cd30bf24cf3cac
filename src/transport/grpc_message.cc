#include "transport/grpc_message.h"

#include <sys/mman.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "base/ascii.h"

namespace arlo::transport {

namespace {

constexpr std::size_t kKept = 32;         // 4 MB
constexpr std::size_t kBlocksAtOnce = 8;  // 1 MB

char* map_block() {
  void* const block = mmap(nullptr, Blocks::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(block);
}

void unmap(char* block) { munmap(block, Blocks::kBytes); }

}  // namespace

thread_local constinit FreeBlocks* FreeBlocks::here_ = nullptr;

void Blocks::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t within = size_ % kBytes;
    if (within == 0) {
      blocks_.reserve(blocks_.size() + 1);
      if (FreeBlocks* const here = FreeBlocks::here_; here != nullptr && !here->free_.empty()) {
        blocks_.push_back(here->free_.back());
        here->free_.pop_back();
      } else {
        blocks_.push_back(map_block());
      }
    }
    const std::size_t some = std::min(kBytes - within, bytes.size());
    std::copy_n(bytes.data(), some, blocks_.back() + within);
    bytes.remove_prefix(some);
    size_ += some;
  }
}

void Blocks::release(char* block) {
  if (FreeBlocks* const here = FreeBlocks::here_) {
    here->free_.push_back(block);
  } else {
    unmap(block);
  }
}

void Blocks::clear() {
  std::ranges::for_each(blocks_, release);
  std::vector<char*>().swap(blocks_);
  size_ = 0;
}

std::string Blocks::take() {
  std::string all;
  all.reserve(size_);
  for (char* const block : std::exchange(blocks_, {})) {
    all.append(block, std::min(kBytes, size_ - all.size()));
    release(block);
  }
  size_ = 0;
  return all;
}

FreeBlocks::FreeBlocks() { here_ = this; }

FreeBlocks::~FreeBlocks() {
  here_ = nullptr;
  std::ranges::for_each(free_, unmap);
}

bool FreeBlocks::give_back() {
  for (std::size_t i = 0; i < kBlocksAtOnce && free_.size() > kKept; ++i) {
    unmap(free_.back());
    free_.pop_back();
  }
  return free_.size() > kKept;
}

MessageReader::Result MessageReader::begin() {
  length_ = 0;
  for (std::size_t i = 1; i < kPrefixBytes; ++i) length_ = length_ << 8 | static_cast<unsigned char>(prefix_[i]);
  const auto flag = static_cast<unsigned char>(prefix_[0]);
  if (flag > 1) return Result::kMalformed;
  if (length_ > most_bytes_) return Result::kTooLarge;
  compressed_ = flag == 1;
  if (!large()) message_.reserve(length_);
  return Result::kOk;
}

Prefix prefix_of(std::size_t length) {
  Prefix prefix{};
  for (std::size_t i = kPrefixBytes; i-- > 1; length >>= 8) prefix[i] = static_cast<char>(length & 0xff);
  return prefix;
}

std::size_t read_piece(const Piece& piece, std::size_t at, std::uint8_t* out, std::size_t most) {
  std::size_t count = 0;
  if (at < kPrefixBytes) {
    count = std::min(most, kPrefixBytes - at);
    std::memcpy(out, piece.prefix.data() + at, count);
    at += count;
  }
  if (at < kPrefixBytes) return count;
  at -= kPrefixBytes;
  const std::size_t some = std::min(most - count, piece.bytes.size() - at);
  std::memcpy(out + count, piece.bytes.data() + at, some);  // NOLINT(bugprone-not-null-terminated-result): bytes
  return count + some;
}

std::string percent_encoded(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::optional<TimeNs> parse_timeout(std::string_view text) {
  constexpr std::size_t kMostDigits = 8;
  if (text.size() < 2 || text.size() > kMostDigits + 1) return std::nullopt;
  TimeNs value = 0;
  for (const char c : text.substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = 10 * value + (c - '0');
  }
  constexpr std::string_view kUnits = "HMSmun";
  constexpr std::array<TimeNs, kUnits.size()> kNs = {3'600'000'000'000, 60'000'000'000, 1'000'000'000,
                                                     1'000'000,         1'000,          1};
  const std::size_t unit = kUnits.find(text.back());
  if (unit == std::string_view::npos) return std::nullopt;
  return std::min(value, kLongestTimeout / kNs.at(unit)) * kNs.at(unit);
}

namespace {

constexpr int kWindow = 15;  // bits, the maximum
constexpr int kGzip = 16;    // added to them
constexpr std::size_t kPiece = 16 << 10;

class Inflater {
 public:
  // `members`: several may follow each other (RFC 1952, 2.2).
  Inflater(int window_bits, bool members) : members_(members), good_(inflateInit2(&stream_, window_bits) == Z_OK) {}
  ~Inflater() {
    if (good_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  Opened run(std::string_view message, std::size_t most_bytes, std::string* out) {
    if (!good_ || message.size() > std::numeric_limits<uInt>::max()) return Opened::kMalformed;
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(message.data()));
    stream_.avail_in = static_cast<uInt>(message.size());
    out->clear();
    std::size_t used = 0;
    for (;;) {
      // One byte over the limit shows that there is more. Room grows only when it is used up, so empty members cost
      // nothing.
      if (used == out->size()) out->resize(used + std::min(std::max(kPiece, used), most_bytes + 1 - used));
      stream_.next_out = reinterpret_cast<Bytef*>(out->data() + used);
      stream_.avail_out = static_cast<uInt>(out->size() - used);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      used = out->size() - stream_.avail_out;
      if (used > most_bytes) return Opened::kTooLarge;
      if (result == Z_STREAM_END) {
        if (stream_.avail_in == 0) {
          out->resize(used);
          return Opened::kOk;
        }
        if (!members_ || inflateReset(&stream_) != Z_OK) return Opened::kMalformed;
        continue;
      }
      if (result != Z_OK || (stream_.avail_in == 0 && stream_.avail_out > 0)) return Opened::kMalformed;
    }
  }

 private:
  z_stream stream_{};
  const bool members_;
  bool good_;
};

}  // namespace

Opened open(std::string_view encoding, std::string_view message, std::size_t most_bytes, std::string* out) {
  most_bytes = std::min<std::size_t>(most_bytes, std::numeric_limits<std::int32_t>::max());
  const bool gzip = equal_ignoring_case(encoding, "gzip") || equal_ignoring_case(encoding, "x-gzip");
  if (!gzip && !equal_ignoring_case(encoding, "deflate")) return Opened::kUnknownEncoding;
  const Opened result = Inflater(gzip ? kWindow + kGzip : kWindow, gzip).run(message, most_bytes, out);
  // Freeing a bomb's memory takes time as well, so the thread that opened it does that.
  if (result != Opened::kOk) std::string().swap(*out);
  return result;
}

std::string packed(std::string_view bytes) {
  z_stream stream{};
  constexpr int kFast = 1;
  constexpr int kMemory = 8;
  if (deflateInit2(&stream, kFast, Z_DEFLATED, kWindow + kGzip, kMemory, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool done = bytes.size() <= std::numeric_limits<uInt>::max() && deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(done ? out.size() - stream.avail_out : 0);
  deflateEnd(&stream);
  return out;
}

}  // namespace arlo::transport
