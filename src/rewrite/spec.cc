#include "rewrite/spec.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

namespace arlo::gateway {

int datatype_size(std::string_view datatype) {
  struct Entry {
    std::string_view name;
    int size;
  };
  static constexpr Entry kSizes[] = {{"BOOL", 1},   {"UINT8", 1}, {"INT8", 1},   {"UINT16", 2}, {"INT16", 2},
                                     {"FP16", 2},   {"BF16", 2},  {"UINT32", 4}, {"INT32", 4},  {"FP32", 4},
                                     {"UINT64", 8}, {"INT64", 8}, {"FP64", 8},   {"BYTES", 0}};
  for (const auto& entry : kSizes) {
    if (entry.name == datatype) return entry.size;
  }
  return -1;
}

namespace {

constexpr std::string_view kActivations[] = {"", "softmax", "sigmoid", "identity", "tanh"};

}  // namespace

bool read_activation(std::string_view name, Activation* out) {
  const auto* const found = std::ranges::find(kActivations, name);
  if (found != std::end(kActivations)) *out = static_cast<Activation>(found - std::begin(kActivations));
  return found != std::end(kActivations);
}

std::string_view activation_name(Activation activation) { return kActivations[static_cast<std::size_t>(activation)]; }

int ModelSpec::find_input(std::string_view wanted) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name == wanted) return static_cast<int>(i);
  }
  return -1;
}

int ModelSpec::find_output(std::string_view wanted) const {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name == wanted) return static_cast<int>(i);
  }
  return -1;
}

int ModelSpec::vector_output(bool of_tokens) const {
  int only = -1;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = outputs[i];
    if (output.token_level != of_tokens || output.datatype != "FP32" || output.dims.size() != 1 ||
        (inner >> i & 1) != 0) {
      continue;
    }
    if (output.name == (of_tokens ? "last_hidden_state" : "sentence_embedding")) return static_cast<int>(i);
    if (output.name == "logits" || output.name == "probabilities") continue;
    only = only == -1 ? static_cast<int>(i) : -2;
  }
  return std::max(only, -1);
}

std::int64_t ModelSpec::cut_to() const {
  const int vector = dimensions == 0 ? -1 : vector_output(false);
  if (vector < 0) return 0;
  const auto whole = outputs[static_cast<std::size_t>(vector)].dims[0];
  return whole < 0 || dimensions < whole ? dimensions : 0;
}

int ModelSpec::find_task(std::string_view wanted) const {
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].name == wanted) return static_cast<int>(i);
  }
  return -1;
}

std::string ModelSpec::task_names() const {
  std::string names;
  for (const auto& each : tasks) names += (names.empty() ? "" : ", ") + each.name;
  return names;
}

std::int64_t all_ids(const InputSpec& ids) {
  return ids.item == 4 ? std::int64_t{1} << 31 : std::numeric_limits<std::int64_t>::max();
}

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

bool take_element(std::string_view& left, std::string_view& out) {
  std::uint32_t size = 0;
  if (left.size() < sizeof(size)) return false;
  std::memcpy(&size, left.data(), sizeof(size));  // little-endian hosts only
  if (size > left.size() - sizeof(size)) return false;
  out = left.substr(sizeof(size), size);
  left.remove_prefix(sizeof(size) + size);
  return true;
}

char* put_element(std::string_view element, char* out) {
  const auto size = static_cast<std::uint32_t>(element.size());
  std::memcpy(out, &size, sizeof(size));
  if (size != 0) std::memcpy(out + sizeof(size), element.data(), size);
  return out + sizeof(size) + size;
}

}  // namespace arlo::gateway
