#include "gateway/front/own_task.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/front/embeddings.h"
#include "gateway/front/scores.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

class TeiOwn final : public ApiTask {
 public:
  TeiOwn() : ApiTask(Dialect::kTei) {}

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    const auto inputs = body.find("inputs");
    if (body.contains("query")) {
      task_ = make_either_rerank();
    } else if (inputs != body.end() && inputs->is_object()) {
      task_ = make_tei_similarity();
    }
    if (task_ != nullptr) {
      auto fault = task_->read(from);
      dialect_ = task_->dialect();
      model_ = task_->model();
      return fault;
    }
    // Which of these it is, the model says; lists are read by each in a way of its own.
    labels_ = make_tei_predict();
    labels_fault_ = labels_->read(from);
    vectors_ = make_tei_embed();
    vectors_fault_ = vectors_->read(from);
    if (vectors_fault_ && labels_fault_) return vectors_fault_;
    return read_text(body, "model", &model_);
  }

  [[nodiscard]] bool fits(const ModelSpec& model) const override {
    return task_ != nullptr ? task_->fits(model) : labels_->fits(model) || vectors_->fits(model);
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    if (task_ == nullptr) {
      const bool labels = labels_->fits(model) && !vectors_->fits(model);
      if (auto fault = labels ? labels_fault_ : vectors_fault_) return fault;
      task_ = std::move(labels ? labels_ : vectors_);
    }
    return task_->ask(model, most_rows, out);
  }

  [[nodiscard]] const std::shared_ptr<text::Job>& text_job() const override {
    return task_ != nullptr ? task_->text_job() : job_;
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    return task_->write(model, answer, out);
  }

 private:
  std::unique_ptr<ApiTask> task_;
  std::unique_ptr<ApiTask> labels_;
  std::unique_ptr<ApiTask> vectors_;
  MaybeFault labels_fault_;
  MaybeFault vectors_fault_;
};

}  // namespace

std::unique_ptr<ApiTask> make_tei_own() { return std::make_unique<TeiOwn>(); }

}  // namespace arlo::gateway
