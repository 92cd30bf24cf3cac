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

bool read_activation(std::string_view name, Activation* out) {
  static constexpr std::string_view kNames[] = {"", "softmax", "sigmoid", "identity", "tanh"};
  const auto* const found = std::ranges::find(kNames, name);
  if (found != std::end(kNames)) *out = static_cast<Activation>(found - std::begin(kNames));
  return found != std::end(kNames);
}

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
