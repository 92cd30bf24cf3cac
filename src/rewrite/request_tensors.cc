// Requests for models whose rows are tensors: fixed ones, ragged ones that are filled up as token ids are, and BYTES.
// Rows stay in the received body; they are copied once, into the worker's request.
#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "rewrite/request.h"
#include "rewrite/rows.h"

namespace arlo::gateway {

MaybeFault InferRequest::bind_tensors(const RequestLimits& limits, bool raw_given) {
  const ModelSpec& model = *model_;
  const auto named = [&](const std::string& name) {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
    return found == tensors_.end() ? nullptr : &*found;
  };
  const auto& leading = model.inputs[model.ids];
  const Tensor* const first = named(leading.name);
  if (first == nullptr) return invalid("input '" + leading.name + "' of model '" + model.name + "' is missing");
  if (first->dims == 0) return check_shape(*first, leading);
  if (auto fault = count_rows(*first, limits)) return fault;
  // Rows that a pipeline makes may outlive the request; decoded numbers would not.
  if (!raw_given && model.flow != nullptr) {
    return invalid("inputs of model '" + model.name + "' must be sent in raw_input_contents");
  }
  cells_.resize(static_cast<std::size_t>(rows_) * model.inputs.size());
  std::vector<bool> given(model.inputs.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& tensor = tensors_[i];
    const int found = model.find_input(tensor.name);
    if (found < 0) return invalid("unknown input " + quoted(tensor.name) + " of model '" + model.name + "'");
    const auto input = static_cast<std::size_t>(found);
    const auto& spec = model.inputs[input];
    if (given[input]) return invalid("input '" + spec.name + "' is given twice");
    given[input] = true;
    if (names_tasks(tensor)) continue;
    if (tensor.datatype != spec.datatype) {
      return invalid("input '" + spec.name + "' has datatype " + quoted(tensor.datatype) + "; " + spec.datatype +
                     " is needed");
    }
    if (auto fault = cut_cells(tensor, input, raw_given ? &raw_[i] : nullptr)) return fault;
  }
  if (auto fault = read_tasks(raw_given)) return fault;
  if (model.task >= 0) given[static_cast<std::size_t>(model.task)] = true;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] || model.inputs[i].optional) continue;
    return invalid("input '" + model.inputs[i].name + "' of model '" + model.name + "' is missing");
  }
  return measure_rows();
}

// `raw` null: it is in the tensor's typed contents.
MaybeFault InferRequest::cut_cells(const Tensor& tensor, std::size_t input, const std::string_view* raw) {
  const auto& spec = model_->inputs[input];
  const std::string what = "input '" + spec.name + "'";
  if (auto fault = check_shape(tensor, spec)) return fault;
  const auto rows = static_cast<std::size_t>(rows_);
  const auto stride = model_->inputs.size();
  const auto steps = spec.ragged() ? static_cast<std::uint64_t>(tensor.shape[1]) : 1;
  if (spec.ragged() && steps > static_cast<std::uint64_t>(model_->longest)) {
    return invalid(what + " has length " + std::to_string(steps) + "; model '" + model_->name + "' takes 1 to " +
                   std::to_string(model_->longest));
  }
  if (spec.item != 0) {
    const std::size_t each = steps * spec.step();  // rows and steps have limits, and a step is of a GiB at most
    const char* data = raw == nullptr ? nullptr : raw->data();
    if (raw == nullptr) {
      if (auto fault = decode_typed(tensor, spec, rows * spec.elements(steps), &data)) return fault;
    } else if (raw->size() != rows * each) {
      return invalid(what + " carries " + std::to_string(raw->size()) + " bytes; its shape and datatype need " +
                     std::to_string(rows * each));
    }
    for (std::size_t row = 0; row < rows; ++row) cells_[row * stride + input] = {data + row * each, each};
    return {};
  }
  if (raw == nullptr) return invalid(what + " of datatype BYTES must come as raw_input_contents");
  std::string_view rest = *raw;
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint32_t size = 0;
    if (rest.size() >= sizeof(size)) std::memcpy(&size, rest.data(), sizeof(size));  // little-endian hosts only
    if (rest.size() < sizeof(size) || size > rest.size() - sizeof(size)) {
      return invalid(what + ": element " + std::to_string(row) +
                     " is cut short; each is its size in bytes as 4 bytes, little-endian, and its bytes");
    }
    cells_[row * stride + input] = rest.substr(sizeof(size), size);
    rest.remove_prefix(sizeof(size) + size);
  }
  if (rest.empty()) return {};
  return invalid(what + " carries more elements than its shape says");
}

// Finds the lengths, in steps of the ragged inputs; where there is none all rows are alike.
MaybeFault InferRequest::measure_rows() {
  const ModelSpec& model = *model_;
  const bool steps_matter =
      std::any_of(model.inputs.begin(), model.inputs.end(), [](const auto& spec) { return spec.ragged(); });
  lengths_.assign(static_cast<std::size_t>(rows_), steps_matter ? 1 : std::max(model.longest, 1));
  for (std::size_t row = 0; row < lengths_.size(); ++row) {
    bool found = false;
    for (std::size_t i = 0; i < model.inputs.size(); ++i) {
      const auto& spec = model.inputs[i];
      const auto size = cell(row, i).size();
      const std::string what = "row " + std::to_string(row) + " of input '" + spec.name + "' has ";
      if (spec.item == 0 || (spec.optional && cell(row, i).data() == nullptr)) continue;
      if (!spec.ragged()) {
        if (size == spec.step()) continue;
        return invalid(what + std::to_string(size) + " bytes; " + std::to_string(spec.step()) + " are needed");
      }
      const auto steps = size / spec.step();
      if (size % spec.step() != 0) {
        return invalid(what + std::to_string(size) + " bytes; a multiple of " + std::to_string(spec.step()) +
                       " is needed");
      }
      if (steps < 1 || steps > static_cast<std::size_t>(model.longest)) {
        return invalid(what + "length " + std::to_string(steps) + "; model '" + model.name + "' takes 1 to " +
                       std::to_string(model.longest));
      }
      const auto length = static_cast<std::int32_t>(steps);
      if (found && lengths_[row] != length) {
        return invalid(what + "length " + std::to_string(length) + "; another input of the row has " +
                       std::to_string(lengths_[row]));
      }
      found = true;
      lengths_[row] = length;
    }
  }
  return {};
}

MaybeFault InferRequest::bind_row(const ModelSpec& model, OutputSet outputs, std::span<const std::string_view> cells) {
  model_ = &model;
  outputs_ = outputs;
  rows_ = 1;
  cells_.assign(cells.begin(), cells.end());
  return measure_rows();
}

std::size_t WorkerRequest::cells_size(std::size_t input) const {
  const auto& spec = first().model_->inputs[input];
  if (spec.item != 0) return rows_.size() * spec.elements(tokens_) * spec.item;
  std::size_t size = 0;
  for (const Row& each : rows_) size += sizeof(std::uint32_t) + each.request->cell(each.row, input).size();
  return size;
}

void WorkerRequest::write_cells(std::size_t input, char* out) const {
  const auto& spec = first().model_->inputs[input];
  for (const Row& each : rows_) {
    const auto cell = each.request->cell(each.row, input);
    if (spec.item == 0) {
      const auto size = static_cast<std::uint32_t>(cell.size());
      std::memcpy(out, &size, sizeof(size));
      out += sizeof(size);
    }
    if (!cell.empty()) std::memcpy(out, cell.data(), cell.size());
    out += cell.size();
    if (spec.item == 0) continue;
    const std::size_t rest = spec.elements(tokens_) - cell.size() / spec.item;
    fill_items(out, rest, spec.item, spec.pad_value);
    out += rest * spec.item;
  }
}

}  // namespace arlo::gateway
