#include "rewrite/spec.h"

#include <algorithm>
#include <iterator>
#include <limits>

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
  for (const auto& task : tasks) names += (names.empty() ? "" : ", ") + task.name;
  return names;
}

std::int64_t all_ids(const InputSpec& ids) {
  return ids.item == 4 ? std::int64_t{1} << 31 : std::numeric_limits<std::int64_t>::max();
}

}  // namespace arlo::gateway
