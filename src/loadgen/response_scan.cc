#include "loadgen/response_scan.h"

#include <optional>

namespace arlo::loadgen {

namespace {

// ModelInferResponse.parameters, map<string, InferParameter>; the oneof of InferParameter.
constexpr uint32_t kParameters = 4;
constexpr uint32_t kBool = 1, kInt64 = 2, kUint64 = 5;

class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  bool done() const { return at_ == end_; }

  bool Varint(uint64_t* out) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ != end_; shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(*at_++);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *out = value;
        return true;
      }
    }
    return false;
  }

  bool Bytes(std::string_view* out) {
    uint64_t size = 0;
    if (!Varint(&size) || size > static_cast<uint64_t>(end_ - at_)) return false;
    *out = {at_, static_cast<size_t>(size)};
    at_ += size;
    return true;
  }

  bool Skip(uint32_t wire_type) {
    uint64_t number;
    std::string_view bytes;
    switch (wire_type) {
      case 0:
        return Varint(&number);
      case 1:
        return Advance(8);
      case 2:
        return Bytes(&bytes);
      case 5:
        return Advance(4);
      default:
        return false;
    }
  }

 private:
  bool Advance(ptrdiff_t n) {
    if (end_ - at_ < n) return false;
    at_ += n;
    return true;
  }

  const char* at_;
  const char* end_;
};

// An integer or bool parameter; empty for other kinds.
bool ScanValue(std::string_view bytes, std::optional<int64_t>* value) {
  Reader reader(bytes);
  while (!reader.done()) {
    uint64_t tag = 0, number = 0;
    if (!reader.Varint(&tag)) return false;
    const uint64_t field = tag >> 3;
    if ((tag & 7) == 0 && (field == kBool || field == kInt64 || field == kUint64)) {
      if (!reader.Varint(&number)) return false;
      *value = static_cast<int64_t>(number);
    } else if (!reader.Skip(tag & 7)) {
      return false;
    }
  }
  return true;
}

bool ScanParameter(std::string_view bytes, Record* record) {
  std::string_view key, message;
  Reader reader(bytes);
  while (!reader.done()) {
    uint64_t tag = 0;
    if (!reader.Varint(&tag)) return false;
    if (tag == (1 << 3 | 2)) {
      if (!reader.Bytes(&key)) return false;
    } else if (tag == (2 << 3 | 2)) {
      if (!reader.Bytes(&message)) return false;
    } else if (!reader.Skip(tag & 7)) {
      return false;
    }
  }
  std::optional<int64_t> value;
  if (!ScanValue(message, &value)) return false;
  if (!value) return true;
  if (key == "level") {
    record->level = static_cast<int32_t>(*value);
  } else if (key == "max_length") {
    record->max_length = static_cast<int32_t>(*value);
  } else if (key == "demoted") {
    record->demoted = *value != 0;
  } else if (key == "queue_us") {
    record->queue_us = *value;
  } else if (key == "execute_us") {
    record->execute_us = *value;
  } else if (key == "total_us") {
    record->total_us = *value;
  } else if (key == "computed_tokens") {
    record->computed_tokens = *value;
  }
  return true;
}

}  // namespace

bool ScanResponse(std::string_view bytes, Record* record) {
  Reader reader(bytes);
  while (!reader.done()) {
    uint64_t tag = 0;
    if (!reader.Varint(&tag)) return false;
    if (tag == (kParameters << 3 | 2)) {
      std::string_view entry;
      if (!reader.Bytes(&entry) || !ScanParameter(entry, record)) return false;
    } else if (!reader.Skip(tag & 7)) {
      return false;
    }
  }
  return true;
}

}  // namespace arlo::loadgen
