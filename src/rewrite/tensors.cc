#include "rewrite/model.h"

#include <algorithm>
#include <set>
#include <string>

namespace arlo::gateway {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;  // of a row of an input, or of a step of one

bool is_tensor(const v1::InputTensor& input) { return input.role() == v1::InputTensor::ROLE_TENSOR; }

bool one_element(const auto& dims) { return dims.empty() || (dims.size() == 1 && dims[0] == 1); }

bool steps(const v1::InputTensor& input) { return is_tensor(input) && !input.dims().empty() && input.dims(0) == -1; }

// `alone`: all inputs of the model are tensors.
MaybeFault check_tensor(const v1::InputTensor& input, bool alone) {
  const std::string where = "model.inputs: '" + input.name() + "' ";
  if (static_cast<std::size_t>(input.dims_size()) > kMostDims) {
    return invalid(where + "has more than " + std::to_string(kMostDims) + " dims");
  }
  const int size = datatype_size(input.datatype());
  if (size < 0) return invalid(where + "has unknown datatype " + input.datatype());
  const bool whole = input.datatype().find("INT") != std::string::npos;
  if (!whole && input.pad_value() != 0) {
    return invalid(where + "has a pad_value; only that of whole numbers may be set");
  }
  if (!alone && (size == 0 || steps(input))) {
    return invalid(where + "is beside token ids, and not of a fixed size");
  }
  if (size == 0) {
    if (one_element(input.dims())) return {};
    return invalid(where + "is BYTES, of which a row has one element: no dims, or 1");
  }
  std::int64_t bytes = size;
  for (int i = steps(input) ? 1 : 0; i < input.dims_size(); ++i) {
    const auto dim = input.dims(i);
    if (dim < 1 || dim > kMostBytes / bytes) {
      return invalid(where + "needs dims above 0, or -1 for the first, and at most " + std::to_string(kMostBytes) +
                     " bytes a row");
    }
    bytes *= dim;
  }
  return {};
}

}  // namespace

bool all_tensors(const v1::Model& model) {
  return !model.inputs().empty() && std::all_of(model.inputs().begin(), model.inputs().end(), is_tensor);
}

bool ragged(const v1::Model& model) { return std::any_of(model.inputs().begin(), model.inputs().end(), steps); }

bool varies(const v1::Model& model) {
  return std::any_of(model.inputs().begin(), model.inputs().end(), [](const auto& input) {
    return steps(input) || (is_tensor(input) && datatype_size(input.datatype()) == 0);
  });
}

MaybeFault check_tensors(const v1::Model& model) {
  const auto& inputs = model.inputs();
  const bool alone = all_tensors(model);
  for (const auto& input : inputs) {
    if (!is_tensor(input)) continue;
    if (auto fault = check_tensor(input, alone)) return fault;
  }
  if (!alone) {
    const bool ids = std::any_of(inputs.begin(), inputs.end(),
                                 [](const auto& input) { return input.role() == v1::InputTensor::ROLE_IDS; });
    if (ids || std::none_of(inputs.begin(), inputs.end(), is_tensor)) return {};
    return invalid("model.inputs has inputs for each token, and none of role ROLE_IDS that says how many there are");
  }
  if (std::all_of(inputs.begin(), inputs.end(), [](const auto& input) { return input.optional(); })) {
    return invalid("model.inputs are all optional: a request would have no rows");
  }
  if (!model.tokenizer().empty()) return invalid("model '" + model.name() + "' takes tensors, and has a tokenizer");
  if (ragged(model)) return {};
  for (const auto& output : model.outputs()) {
    if (output.token_level()) return invalid("model.outputs: '" + output.name() + "' is of tokens, and rows have none");
  }
  return {};
}

MaybeFault check_tasks(const v1::Model& model) {
  if (model.tasks().empty()) return {};
  if (static_cast<std::size_t>(model.tasks_size()) > kMostTasks) {
    return invalid("model.tasks: at most " + std::to_string(kMostTasks) + " tasks share a model");
  }
  std::set<std::string> names;
  for (const auto& task : model.tasks()) {
    if (task.name().empty() || !names.insert(task.name()).second) {
      return invalid("model.tasks: name '" + task.name() + "' is empty or given twice");
    }
  }
  const auto input =
      std::find_if(model.inputs().begin(), model.inputs().end(), [](const auto& each) { return each.name() == kTask; });
  if (input == model.inputs().end() || !is_tensor(*input) || input->datatype() != "INT64" || input->dims_size() != 1 ||
      input->dims(0) != 1) {
    return invalid("model.tasks: model '" + model.name() + "' has no input 'task' of ROLE_TENSOR, INT64, dims 1");
  }
  return {};
}

MaybeFault check_children(const v1::Model& model) {
  for (const auto& output : model.outputs()) {
    if (!output.of_children()) continue;
    const std::string where = "model.outputs: '" + output.name() + "' is of children, ";
    if (model.counts().empty()) return invalid(where + "and no output counts them (model.counts)");
    if (output.token_level()) return invalid(where + "and of tokens");
  }
  if (model.counts().empty()) return {};
  const auto counts = std::find_if(model.outputs().begin(), model.outputs().end(),
                                   [&](const auto& output) { return output.name() == model.counts(); });
  if (counts == model.outputs().end() || counts->token_level() || counts->of_children() ||
      (counts->datatype() != "INT32" && counts->datatype() != "INT64") || !one_element(counts->dims())) {
    return invalid("model.counts: '" + model.counts() + "' is no output of one INT32 or INT64 for each row");
  }
  return {};
}

}  // namespace arlo::gateway
