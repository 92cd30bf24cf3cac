#include "transport/grpc_message.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace arlo::transport {
namespace {

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

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

std::string percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? digit(text[i + 1]) : -1;
    const int low = high >= 0 ? digit(text[i + 2]) : -1;
    if (low < 0) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(high << 4 | low);
    i += 2;
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

}  // namespace arlo::transport
