#include "rewrite/tensors.h"

#include <algorithm>
#include <string>

namespace arlo::gateway {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of a row of an input, or of a step of one

bool one_element(const auto& dims) { return dims.empty() || (dims.size() == 1 && dims[0] == 1); }

}  // namespace

bool is_tensor(const v1::Model& model) {
  return std::any_of(model.inputs().begin(), model.inputs().end(),
                     [](const auto& input) { return input.role() == v1::InputTensor::ROLE_TENSOR; });
}

MaybeFault check_tensors(const v1::Model& model) {
  bool ragged = false;
  for (const auto& input : model.inputs()) {
    const std::string where = "model.inputs: '" + input.name() + "' ";
    if (input.role() != v1::InputTensor::ROLE_TENSOR) {
      return invalid(where + "is no ROLE_TENSOR, and another input of the model is one: all are, or none");
    }
    if (input.dims_size() > static_cast<int>(kMaxTensorDims) - 1) {
      return invalid(where + "has more than " + std::to_string(kMaxTensorDims - 1) + " dims");
    }
    const int size = datatype_size(input.datatype());
    if (size < 0) return invalid(where + "has unknown datatype " + input.datatype());
    if (size == 0) {
      if (one_element(input.dims())) continue;
      return invalid(where + "is BYTES, of which a row has one element: no dims, or 1");
    }
    auto bytes = static_cast<std::size_t>(size);
    for (int i = 0; i < input.dims_size(); ++i) {
      const auto dim = input.dims(i);
      if (i == 0 && dim == -1) {
        ragged = true;
        continue;
      }
      if (dim < 1 || static_cast<std::size_t>(dim) > kMostBytes / bytes) {
        return invalid(where + "has a dim of " + std::to_string(dim) +
                       ": they are above 0, or -1 for the first, and 1 GiB together at most");
      }
      bytes *= static_cast<std::size_t>(dim);
    }
    if (input.pad_value() < 0 || input.pad_value() > (input.datatype() == "UINT8" ? 255 : 0)) {
      return invalid(where + "has pad_value " + std::to_string(input.pad_value()) +
                     "; it is 0, or 0 to 255 where it is UINT8");
    }
  }
  if (!model.tokenizer().empty()) return invalid("model '" + model.name() + "' takes tensors, and has a tokenizer");
  const bool by_token = std::any_of(model.outputs().begin(), model.outputs().end(),
                                    [](const auto& output) { return output.token_level(); });
  if (by_token && !ragged) {
    return invalid("model '" + model.name() + "' has an output of each step, and no input with a first dim of -1");
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

InputSpec tensor_spec(const v1::InputTensor& from) {
  InputSpec spec;
  spec.name = from.name();
  spec.datatype = from.datatype();
  spec.role = Role::kTensor;
  spec.pad_value = from.pad_value();
  spec.dims.assign(from.dims().begin(), from.dims().end());
  spec.ragged = !spec.dims.empty() && spec.dims.front() < 0;
  spec.item = static_cast<std::size_t>(datatype_size(from.datatype()));
  for (const auto dim : spec.dims) spec.item *= dim < 0 ? 1 : static_cast<std::size_t>(dim);
  return spec;
}

}  // namespace arlo::gateway
