// Requests for models whose rows are tensors: fixed ones, ragged ones that are filled up as token ids are, and BYTES.
// Rows stay where they came in; they are copied once, into the request of the worker that they go to.
#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "rewrite/request.h"

namespace arlo::gateway {
namespace {

std::string bracketed(const InputSpec& spec) {
  std::string text = "[rows";
  for (const auto dim : spec.dims) text += ", " + std::to_string(dim);
  return text + "]";
}

}  // namespace

MaybeFault InferRequest::bind_tensors(const RequestLimits& limits, bool raw_given) {
  const ModelSpec& model = *model_;
  if (truncate_ != Truncate::kUnsaid) return invalid("parameter truncate is of text");
  std::vector<std::size_t> inputs;  // of each tensor
  std::vector<bool> given(model.inputs.size());
  for (const auto& tensor : tensors_) {
    const int found = model.find_input(tensor.name);
    if (found < 0) return invalid("unknown input " + quoted(tensor.name) + " of model '" + model.name + "'");
    const auto input = static_cast<std::size_t>(found);
    const auto& spec = model.inputs[input];
    if (given[input]) return invalid("input '" + spec.name + "' is given twice");
    given[input] = true;
    if (tensor.datatype != spec.datatype) {
      return invalid("input '" + spec.name + "' has datatype " + quoted(tensor.datatype) + "; " + spec.datatype +
                     " is needed");
    }
    if (tensor.typed || !raw_given) {
      return invalid("input '" + spec.name + "' of model '" + model.name + "' must be sent in raw_input_contents");
    }
    inputs.push_back(input);
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) return invalid("input '" + model.inputs[i].name + "' of model '" + model.name + "' is missing");
  }
  rows_ = tensors_.front().dims == 0 ? 0 : tensors_.front().shape[0];
  if (rows_ < 1 || rows_ > limits.max_rows) {
    return invalid("input " + quoted(tensors_.front().name) + " has " + std::to_string(rows_) + " rows; 1 to " +
                   std::to_string(limits.max_rows) + " are taken in one request");
  }
  cells_.resize(static_cast<std::size_t>(rows_) * model.inputs.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (auto fault = cut_cells(tensors_[i], raw_[i], inputs[i])) return fault;
  }
  return measure_rows();
}

MaybeFault InferRequest::cut_cells(const Tensor& tensor, std::string_view raw, std::size_t input) {
  const auto& spec = model_->inputs[input];
  const std::string what = "input '" + spec.name + "'";
  std::uint64_t steps = 1;
  bool good = tensor.dims == spec.dims.size() + 1 && tensor.shape[0] == rows_;
  for (std::size_t i = 0; good && i < spec.dims.size(); ++i) {
    if (spec.dims[i] < 0) {
      good = tensor.shape[i + 1] >= 0;
      steps = static_cast<std::uint64_t>(tensor.shape[i + 1]);
    } else {
      good = tensor.shape[i + 1] == spec.dims[i];
    }
  }
  if (!good) {
    return invalid(what + " needs the shape " + bracketed(spec) + " with " + std::to_string(rows_) + " rows");
  }
  const auto rows = static_cast<std::size_t>(rows_);
  const auto stride = model_->inputs.size();
  if (spec.item != 0) {
    std::uint64_t each = 0;
    std::uint64_t all = 0;
    if (__builtin_mul_overflow(steps, spec.item, &each) || __builtin_mul_overflow(each, rows, &all) ||
        all != raw.size()) {
      return invalid(what + " carries " + std::to_string(raw.size()) + " bytes, and its shape needs another number");
    }
    for (std::size_t row = 0; row < rows; ++row) cells_[row * stride + input] = raw.substr(row * each, each);
    return {};
  }
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint32_t size = 0;
    if (raw.size() >= sizeof(size)) std::memcpy(&size, raw.data(), sizeof(size));  // little-endian hosts only
    if (raw.size() < sizeof(size) || size > raw.size() - sizeof(size)) {
      return invalid(what + ": element " + std::to_string(row) +
                     " is cut short; each is its size in bytes as 4 bytes, little-endian, and its bytes");
    }
    cells_[row * stride + input] = raw.substr(sizeof(size), size);
    raw.remove_prefix(sizeof(size) + size);
  }
  if (raw.empty()) return {};
  return invalid(what + " carries more elements than its shape says");
}

// Finds the lengths, in steps of the ragged inputs; a row without has length 1.
MaybeFault InferRequest::measure_rows() {
  const ModelSpec& model = *model_;
  lengths_.assign(static_cast<std::size_t>(rows_), 1);
  for (std::size_t row = 0; row < lengths_.size(); ++row) {
    bool found = false;
    for (std::size_t i = 0; i < model.inputs.size(); ++i) {
      const auto& spec = model.inputs[i];
      const auto size = cell(row, i).size();
      const std::string what = "row " + std::to_string(row) + " of input '" + spec.name + "' has ";
      if (spec.item == 0) continue;
      if (!spec.ragged) {
        if (size == spec.item) continue;
        return invalid(what + std::to_string(size) + " bytes; " + std::to_string(spec.item) + " are needed");
      }
      const auto steps = size / spec.item;
      if (size % spec.item != 0) {
        return invalid(what + std::to_string(size) + " bytes; a multiple of " + std::to_string(spec.item) +
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
  if (spec.item != 0) return rows_.size() * spec.item * (spec.ragged ? tokens_ : 1);
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
    if (!spec.ragged) continue;
    const std::size_t rest = tokens_ * spec.item - cell.size();  // a pad value is of bytes, or 0
    std::memset(out, static_cast<int>(spec.pad_value), rest);
    out += rest;
  }
}

}  // namespace arlo::gateway
