// Requests for models whose rows are tensors: fixed ones, ragged ones that are filled up as token ids are, and BYTES.
// Rows stay in the received body; they are copied once, into the worker's request.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/utf8.h"
#include "base/wire.h"
#include "rewrite/request.h"
#include "rewrite/spec.h"

namespace arlo::gateway {

MaybeFault InferRequest::cut_bytes(std::string_view raw, std::size_t input) {
  const std::string what = "input '" + model_->inputs[input].name + "'";
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows_); ++row) {
    if (!take_element(raw, cells_[row * model_->inputs.size() + input])) {
      return invalid(what + ": element " + std::to_string(row) + kCutShort);
    }
  }
  return raw.empty() ? MaybeFault() : invalid(what + " carries more elements than its shape says");
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

// The task of each row, for a model that several tasks share.
namespace {

// The bytes of a task's number, kept for ever: rows that a pipeline makes may outlive the request.
std::string_view number_cell(std::uint32_t task) {
  static const auto all = [] {
    std::array<std::int64_t, kMostTasks> numbers{};
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }();
  return {reinterpret_cast<const char*>(&all.at(task)), sizeof(std::int64_t)};
}

}  // namespace

bool InferRequest::names_tasks(const Tensor& tensor) const {
  return model_->task >= 0 && tensor.name == kTask && tensor.datatype == "BYTES";
}

void InferRequest::forget_task_parameter() {
  if (task_entry_.data() == nullptr || model_->tasks.empty()) return;
  forget_parameter(task_entry_);  // else rows of different tasks would share no batch
}

void InferRequest::forget_parameter(std::string_view entry) {
  const auto gone = std::remove_if(forwarded_.begin(), forwarded_.end(),
                                   [&](const auto each) { return each.data() == entry.data(); });
  if (gone == forwarded_.end()) return;
  forwarded_.erase(gone, forwarded_.end());
  forwarded_size_ -= wire::field_size(entry.size());
}

MaybeFault InferRequest::unknown_task(std::string_view name) const {
  return invalid("unknown task " + quoted(name) + " of model '" + model_->name + "'; it has " + model_->task_names());
}

MaybeFault InferRequest::read_tasks(bool raw_given) {
  const ModelSpec& model = *model_;
  if (model.task < 0) return {};
  const auto rows = static_cast<std::size_t>(rows_);
  const auto input = static_cast<std::size_t>(model.task);
  const auto tensor = std::find_if(tensors_.begin(), tensors_.end(), [](const auto& t) { return t.name == kTask; });
  const bool parameter = task_entry_.data() != nullptr;
  if (tensor != tensors_.end() &&
      std::any_of(tensor + 1, tensors_.end(), [](const auto& t) { return t.name == kTask; })) {
    return invalid("input 'task' is given twice");
  }
  if (parameter && tensor != tensors_.end()) {
    return invalid("task is given twice, by the parameter and by the input: leave one out");
  }
  tasks_.assign(rows, 0);
  if (tensor != tensors_.end() && !names_tasks(*tensor)) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::int64_t number = 0;
      std::memcpy(&number, cell(row, input).data(), sizeof(number));
      if (number < 0 || number >= static_cast<std::int64_t>(model.tasks.size())) {
        return invalid("row " + std::to_string(row) + ": input 'task' has " + std::to_string(number) + "; model '" +
                       model.name + "' has the tasks 0 to " + std::to_string(model.tasks.size() - 1) + ", " +
                       model.task_names());
      }
      tasks_[row] = static_cast<std::uint32_t>(number);
    }
    return {};
  }
  std::vector<std::string_view> names;
  if (tensor != tensors_.end()) {
    if (auto fault = read_texts(static_cast<std::size_t>(tensor - tensors_.begin()), raw_given, names)) return fault;
  } else if (parameter) {
    if (!task_is_text_) return invalid("parameter task must be a string_param: one of " + model.task_names());
    names.assign(rows, task_name_);
  } else {
    return invalid("model '" + model.name + "' needs the parameter task, or an input 'task': one of " +
                   model.task_names());
  }
  // As if the client had sent the numbers.
  for (std::size_t row = 0; row < rows; ++row) {
    const int task =
        row > 0 && names[row] == names[row - 1] ? static_cast<int>(tasks_[row - 1]) : model.find_task(names[row]);
    if (task < 0) return unknown_task(names[row]);
    tasks_[row] = static_cast<std::uint32_t>(task);
    cells_[row * model.inputs.size() + input] = number_cell(tasks_[row]);
  }
  return {};
}

}  // namespace arlo::gateway
