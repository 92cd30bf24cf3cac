// The model's task by its type: POST / of TEI's servers, and several such bodies in one, as Vertex AI sends them.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "gateway/front/api/fields.h"
#include "gateway/front/api/task.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

class TeiOwn final : public ApiTask {
 public:
  TeiOwn() : ApiTask(Dialect::kTei) {}

  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    const json* inputs = in.find("inputs");
    const bool similar = inputs != nullptr && inputs->is_object();
    if (in.has("query") || similar) {
      task_ = in.has("query") ? make_either_rerank() : make_tei_similarity();
      auto fault = task_->read(from);
      dialect_ = task_->dialect();
      model_ = task_->model();
      return fault;
    }
    // The model decides between these; each reads lists differently.
    labels_ = make_tei_predict();
    labels_fault_ = labels_->read(from);
    vectors_ = make_tei_embed();
    vectors_fault_ = vectors_->read(from);
    if (vectors_fault_ && labels_fault_) return vectors_fault_;
    for_vectors_ = in.has("normalize") || in.has("dimensions");
    for_labels_ = in.has("raw_scores") || in.has("task");
    return in.text("model", &model_).fault();
  }

  [[nodiscard]] bool fits(const ModelSpec& model) const override {
    if (task_ != nullptr) return task_->fits(model);
    return (!labels_fault_ && !for_vectors_ && labels_->fits(model)) ||
           (!vectors_fault_ && !for_labels_ && vectors_->fits(model));
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    if (task_ == nullptr) {
      const bool labels = labels_->fits(model) && !vectors_->fits(model);
      if (auto fault = labels ? labels_fault_ : vectors_fault_) return fault;
      task_ = std::move(labels ? labels_ : vectors_);
    }
    return task_->ask(model, most_rows, out);
  }

  [[nodiscard]] std::optional<std::size_t> characters() const override {
    return task_ != nullptr ? task_->characters() : std::nullopt;
  }

  [[nodiscard]] const std::shared_ptr<text::Job>& text_job() const override {
    return task_ != nullptr ? task_->text_job() : job_;
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, HttpAnswer* out) override {
    return task_->write(model, answer, out);
  }

 private:
  std::unique_ptr<ApiTask> task_;
  std::unique_ptr<ApiTask> labels_;
  std::unique_ptr<ApiTask> vectors_;
  MaybeFault labels_fault_;
  MaybeFault vectors_fault_;
  bool for_labels_ = false;  // it has a field that only these tasks use
  bool for_vectors_ = false;
};

// Several TeiOwn bodies as one call: their rows are concatenated.
class Vertex final : public ApiTask {
 public:
  Vertex() : ApiTask(Dialect::kTei) {}

  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    const json* instances = in.find("instances");
    if (instances == nullptr || !instances->is_array()) return invalid("instances must be a list");
    if (instances->empty()) return nothing_in("instances is empty");
    if (auto fault = check_rows(instances->size(), from.most_rows)) return fault;
    if (in.text("model", &model_).fault()) return in.fault();
    for (const auto& instance : *instances) {
      if (!instance.is_object()) return invalid("instances: each is an object, as POST / takes it");
      const std::string bytes = dumped(instance);
      ApiBody each = from;
      each.bytes = bytes;
      if (auto fault = tasks_.emplace_back(make_tei_own())->read(each)) return fault;
      if (tasks_.back()->dialect() != dialect_) {
        return invalid("instances: texts to be ranked stand in texts, and not in documents");
      }
      const auto& model = tasks_.back()->model();
      if (model_.empty()) model_ = model;
      if (!model.empty() && model != model_) return invalid("instances: all ask one model");
    }
    return {};
  }

  [[nodiscard]] bool fits(const ModelSpec& model) const override { return tasks_.front()->fits(model); }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    rows_.clear();
    std::size_t rows = 0;
    std::size_t bytes = 0;
    std::int64_t width = 0;  // of rows of token ids
    std::vector<inference::ModelInferRequest> asked(tasks_.size());
    for (waits_ = 0; waits_ < tasks_.size(); ++waits_) {
      auto& one = asked[waits_];
      if (auto fault = tasks_[waits_]->ask(model, most_rows, &one)) return fault;
      if (!alike(one, asked.front())) {
        return invalid("instances: they differ in more than their texts; send them in requests of their own");
      }
      const auto& input = one.inputs(0);
      rows_.push_back(static_cast<std::size_t>(input.shape(0)));
      rows += rows_.back();
      if (auto fault = check_rows(rows, most_rows)) return fault;
      if (input.shape_size() == 2) {
        if (waits_ != 0 && width != input.shape(1) && model.mask < 0) {
          return invalid("instances: model '" + model.name +
                         "' has no attention mask, so all token ids must be of one length");
        }
        width = std::max(width, input.shape(1));
      }
      for (const auto& raw : one.raw_input_contents()) bytes += raw.size();
      if (auto fault = check_made(bytes)) return fault;
    }
    if (auto fault = check_made(rows * static_cast<std::size_t>(width) * sizeof(std::int64_t))) return fault;
    out->Swap(&asked.front());
    for (int i = 0; i < out->inputs_size(); ++i) {
      widen(width, out->mutable_inputs(i), out->mutable_raw_input_contents(i));
      for (std::size_t k = 1; k < asked.size(); ++k) {
        widen(width, asked[k].mutable_inputs(i), asked[k].mutable_raw_input_contents(i));
        out->mutable_raw_input_contents(i)->append(asked[k].raw_input_contents(i));
      }
      out->mutable_inputs(i)->set_shape(0, static_cast<std::int64_t>(rows));
    }
    return {};
  }

  [[nodiscard]] std::optional<std::size_t> characters() const override {
    std::size_t count = 0;
    for (const auto& task : tasks_) count += task->characters().value_or(0);
    return count;
  }

  [[nodiscard]] const std::shared_ptr<text::Job>& text_job() const override {
    return waits_ < tasks_.size() ? tasks_[waits_]->text_job() : job_;
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, HttpAnswer* out) override {
    Rows made;
    const auto rows = std::accumulate(rows_.begin(), rows_.end(), std::size_t{0});
    if (auto fault = read_rows(answer, rows, &made, rows_)) return fault;
    out->body = "{\"predictions\":[";
    std::size_t row = 0;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      inference::ModelInferResponse one;
      one.add_raw_output_contents(made[row], rows_[i] * made.each * sizeof(float));
      row += rows_[i];
      HttpAnswer each;
      if (auto fault = tasks_[i]->write(model, one, &each)) return fault;
      out->body += (i == 0 ? "" : ",") + each.body;
    }
    out->body += "]}";
    return {};
  }

 private:
  // Whether they request the same outputs for their rows.
  static bool alike(const inference::ModelInferRequest& one, const inference::ModelInferRequest& other) {
    return one.outputs(0).name() == other.outputs(0).name() && one.parameters_size() == other.parameters_size() &&
           std::ranges::all_of(one.parameters(),
                               [&](const auto& each) {
                                 const auto found = other.parameters().find(each.first);
                                 return found != other.parameters().end() &&
                                        found->second.SerializeAsString() == each.second.SerializeAsString();
                               }) &&
           std::ranges::equal(one.inputs(), other.inputs(), [](const auto& mine, const auto& theirs) {
             return mine.name() == theirs.name() && mine.shape_size() == theirs.shape_size();
           });
  }

  // Pads rows of token ids, and their mask, with zeros.
  static void widen(std::int64_t width, inference::ModelInferRequest::InferInputTensor* tensor, std::string* raw) {
    if (tensor->shape_size() != 2 || tensor->shape(1) == width) return;
    const auto rows = static_cast<std::size_t>(tensor->shape(0));
    const std::size_t have = raw->size() / rows;
    const std::size_t want = have / static_cast<std::size_t>(tensor->shape(1)) * static_cast<std::size_t>(width);
    std::string wide(rows * want, '\0');
    for (std::size_t row = 0; row < rows; ++row) std::copy_n(raw->data() + row * have, have, wide.data() + row * want);
    *raw = std::move(wide);
    tensor->set_shape(1, width);
  }

  std::vector<std::unique_ptr<ApiTask>> tasks_;
  std::vector<std::size_t> rows_;  // per body
  std::size_t waits_ = 0;          // the one whose texts a helper tokenises
};

}  // namespace

std::unique_ptr<ApiTask> make_tei_vertex() { return std::make_unique<Vertex>(); }
std::unique_ptr<ApiTask> make_tei_own() { return std::make_unique<TeiOwn>(); }

}  // namespace arlo::gateway
