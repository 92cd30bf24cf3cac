// Reading and writing protobuf's wire format in place.
//
// The gateway moves tensors of kilobytes to megabytes and needs a few short fields of each message; a view into the
// received bytes avoids copying every tensor into a message object and out of it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace arlo::wire {

enum Type : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Reads a number of at most `most` bytes and moves `at` behind it; false when malformed.
inline bool read_varint(const char*& at, const char* end, int most, std::uint64_t* out) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 7 * most; shift += 7) {
    if (at == end) return false;
    const auto byte = static_cast<std::uint8_t>(*at++);
    if (shift == 63 && byte > 1) return false;
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *out = value;
      return true;
    }
  }
  return false;
}

// One field after another. All views point into the buffer given. On malformed input next() returns false and ok()
// turns false. Never looser than protobuf, so that a field read here may be forwarded as it is; stricter in two points:
// groups (types 3 and 4) are malformed, as proto3 has none, and so are numbers that do not fit their type.
class Reader {
 public:
  explicit Reader(std::string_view data) : at_(data.data()), end_(data.data() + data.size()) {}

  // Moves to the next field; false at the end or when malformed.
  bool next() {
    if (at_ == end_) return false;
    std::uint64_t key = 0;
    if (!read_varint(&key, kShort) || (key >> 3) == 0 || (key >> 3) > kMaxField) return fail();
    field_ = static_cast<std::uint32_t>(key >> 3);
    type_ = static_cast<Type>(key & 7);
    switch (type_) {
      case kVarint:
        return read_varint(&number_, kLong) || fail();
      case kFixed64:
        return read_fixed(8) || fail();
      case kFixed32:
        return read_fixed(4) || fail();
      case kBytes: {
        std::uint64_t size = 0;
        if (!read_varint(&size, kShort) || size > static_cast<std::uint64_t>(end_ - at_)) return fail();
        bytes_ = {at_, static_cast<std::size_t>(size)};
        at_ += size;
        return true;
      }
      default:
        return fail();
    }
  }

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::uint32_t field() const { return field_; }
  [[nodiscard]] Type type() const { return type_; }
  [[nodiscard]] std::uint64_t number() const { return number_; }   // kVarint, kFixed64, kFixed32
  [[nodiscard]] std::string_view bytes() const { return bytes_; }  // kBytes
  [[nodiscard]] bool is(std::uint32_t field, Type type) const { return field_ == field && type_ == type; }

 private:
  static constexpr std::uint64_t kMaxField = (1U << 29) - 1;
  static constexpr int kShort = 5;  // bytes of a tag or length; protobuf reads no longer one, even if it is all zeros
  static constexpr int kLong = 10;

  bool fail() {
    ok_ = false;
    at_ = end_;
    return false;
  }
  bool read_varint(std::uint64_t* out, int max_bytes) { return wire::read_varint(at_, end_, max_bytes, out); }
  bool read_fixed(std::ptrdiff_t size) {
    if (end_ - at_ < size) return false;
    number_ = 0;
    std::memcpy(&number_, at_, static_cast<std::size_t>(size));
    at_ += size;
    return true;
  }

  const char* at_;
  const char* end_;
  bool ok_ = true;
  std::uint32_t field_ = 0;
  Type type_ = kVarint;
  std::uint64_t number_ = 0;
  std::string_view bytes_;
};

// Calls each(uint64) for the varints of a packed field; false when malformed.
template <typename Each>
bool for_each_packed(std::string_view packed, Each each) {
  const char* at = packed.data();
  const char* end = at + packed.size();
  while (at != end) {
    std::uint64_t value = 0;
    if (!read_varint(at, end, 10, &value)) return false;
    each(value);
  }
  return true;
}

inline std::size_t varint_size(std::uint64_t value) {
  std::size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}
// Of a length-delimited field with a field number below 16, tag and length included.
inline std::size_t field_size(std::size_t bytes) { return 1 + varint_size(bytes) + bytes; }

// Writes into memory that the caller has sized; numbers of fields are below 16, so a tag is one byte.
class Writer {
 public:
  explicit Writer(char* at) : at_(at) {}

  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) *at_++ = static_cast<char>(value | 0x80);
    *at_++ = static_cast<char>(value);
  }
  void tag(std::uint32_t field, Type type) { *at_++ = static_cast<char>(field << 3 | type); }
  void header(std::uint32_t field, std::size_t size) {
    tag(field, kBytes);
    varint(size);
  }
  void bytes(std::uint32_t field, std::string_view value) {
    header(field, value.size());
    raw(value.data(), value.size());
  }
  void raw(const void* from, std::size_t size) {
    if (size != 0) std::memcpy(at_, from, size);
    at_ += size;
  }
  void zeros(std::size_t size) {
    if (size != 0) std::memset(at_, 0, size);
    at_ += size;
  }
  [[nodiscard]] char* at() const { return at_; }

 private:
  char* at_;
};

}  // namespace arlo::wire
