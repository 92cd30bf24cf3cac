// Requests for a model that several tasks share: finds the task of each row.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/utf8.h"
#include "base/wire.h"
#include "rewrite/request.h"
#include "rewrite/rows.h"

namespace arlo::gateway {

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
    return invalid("task is said twice, by the parameter and by the input: leave one out");
  }
  tasks_.assign(rows, 0);
  if (tensor != tensors_.end() && !names_tasks(*tensor)) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::int64_t number = 0;
      std::memcpy(&number, row_bytes(input, row).data(), sizeof(number));
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
  std::string values;
  for (std::size_t row = 0; row < rows; ++row) {
    const int task =
        row > 0 && names[row] == names[row - 1] ? static_cast<int>(tasks_[row - 1]) : model.find_task(names[row]);
    if (task < 0) return unknown_task(names[row]);
    tasks_[row] = static_cast<std::uint32_t>(task);
    const auto cell = number_cell(tasks_[row]);
    if (model.of_tensors()) {
      cells_[row * model.inputs.size() + input] = cell;
    } else {
      values += cell;
    }
  }
  if (model.of_tensors()) return {};
  decoded_.push_back(std::move(values));
  bound_[input].data = decoded_.back().data();
  return {};
}

}  // namespace arlo::gateway
