#include "rewrite/rows.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace arlo::gateway {
void fill_items(char* out, std::size_t count, std::size_t item, std::int64_t value) {
  if (value == 0) {
    std::memset(out, 0, count * item);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * item, &value, item);  // little-endian hosts only
}

std::uint64_t read_id(const char* at, std::size_t item) {
  if (item == 8) {
    std::uint64_t wide = 0;
    std::memcpy(&wide, at, sizeof(wide));
    return wide;
  }
  std::int32_t narrow = 0;
  std::memcpy(&narrow, at, sizeof(narrow));
  return static_cast<std::uint64_t>(std::int64_t{narrow});
}

// An engine that gets an id outside its vocabulary answers nonsense (ONNX counts negative ones from the end), or
// fails in a way that looks like a broken worker.
MaybeFault check_ids(const ModelSpec& model, const char* at, std::int64_t row, std::int64_t length) {
  const auto& spec = model.inputs[model.ids];
  const std::int64_t bound = model.vocabulary;
  std::uint64_t highest = 0;
  for (std::int64_t i = 0; i < length; ++i, at += spec.item) highest = std::max(highest, read_id(at, spec.item));
  if (highest < static_cast<std::uint64_t>(bound)) return {};
  const auto id = spec.item == 8 ? static_cast<std::int64_t>(highest) : static_cast<std::int32_t>(highest);
  return invalid("row " + std::to_string(row) + " has the token id " + std::to_string(id) + "; model '" + model.name +
                 "' takes ids of 0 to " + std::to_string(bound - 1));
}

MaybeFault find_lengths(const ModelSpec& model, const char* ids, const char* mask, std::int64_t rows,
                        std::int64_t width, std::vector<std::int32_t>& lengths) {
  const std::size_t item = model.mask < 0 ? 8 : model.inputs[static_cast<std::size_t>(model.mask)].item;
  lengths.resize(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t length = width;
    if (mask != nullptr) {
      const char* at = mask + static_cast<std::size_t>(row * width) * item;
      static constexpr char kZeros[8] = {};
      while (length > 0 && std::memcmp(at + static_cast<std::size_t>(length - 1) * item, kZeros, item) == 0) --length;
    }
    if (length < 1 || length > model.longest) {
      return invalid("row " + std::to_string(row) + " has length " + std::to_string(length) + "; model '" + model.name +
                     "' takes 1 to " + std::to_string(model.longest) +
                     " tokens (truncate on the client if that is what you want)");
    }
    lengths[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(length);
    const char* const at = ids + static_cast<std::size_t>(row * width) * model.inputs[model.ids].item;
    if (auto fault = check_ids(model, at, row, length)) return fault;
  }
  return {};
}

void write_row(const InputSpec& spec, const char* from, std::size_t length, std::size_t tokens, char* out) {
  if (from != nullptr) {
    std::memcpy(out, from, length * spec.item);
  } else {
    fill_items(out, length, spec.item, spec.role == Role::kMask ? 1 : spec.pad_value);
  }
  fill_items(out + length * spec.item, tokens - length, spec.item, spec.pad_value);
}

}  // namespace arlo::gateway
