#include "gateway/front/logits.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace arlo::gateway {
namespace {

void softmax(float* values, std::size_t count) {
  const float most = *std::max_element(values, values + count);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(double{values[i]} - most);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(std::exp(double{values[i]} - most) / sum);
}

}  // namespace

const OutputSpec* logits_of(const ModelSpec& model) {
  const int found = model.find_output("logits");
  if (found < 0 || (model.inner >> found & 1) != 0) return nullptr;
  const auto& output = model.outputs[static_cast<std::size_t>(found)];
  return output.token_level || output.datatype != "FP32" || output.dims.size() != 1 ? nullptr : &output;
}

bool is_classifier(const ModelSpec& model) {
  const auto* logits = logits_of(model);
  return logits != nullptr && logits->dims[0] != 1;
}

bool is_reranker(const ModelSpec& model) {
  const auto* logits = logits_of(model);
  return logits != nullptr && logits->dims[0] == 1;
}

MaybeFault ask_labels(const ModelSpec& model, const std::string& task, inference::ModelInferRequest* out) {
  const auto* logits = logits_of(model);
  if (logits == nullptr) {
    return Fault{Code::kUnimplemented,
                 "model '" + model.name + "' is no classifier: it has no output logits of labels"};
  }
  out->set_model_name(model.name);
  out->add_outputs()->set_name(logits->name);
  if (!model.tasks.empty() && !task.empty()) (*out->mutable_parameters())["task"].set_string_param(task);
  return {};
}

MaybeFault ask_score(const ModelSpec& model, inference::ModelInferRequest* out) {
  const auto* logits = logits_of(model);
  if (logits != nullptr && logits->dims[0] == 1) return ask_labels(model, {}, out);
  return Fault{Code::kUnimplemented,
               "model '" + model.name + "' is no reranker: " +
                   (logits == nullptr ? "it has no output logits of labels"
                                      : "it has " + std::to_string(logits->dims[0]) + " labels, and one is needed")};
}

Labels labels_of(const ModelSpec& model, const std::string& task, std::size_t logits) {
  const int of = model.find_task(task);
  if (of < 0) return {&model.labels, logits};
  const auto& names = model.tasks[static_cast<std::size_t>(of)].labels;
  return {&names, names.empty() ? logits : std::min(names.size(), logits)};
}

std::string label_of(const Labels& labels, std::size_t label) {
  return label < labels.names->size() ? (*labels.names)[label] : "LABEL_" + std::to_string(label);
}

void activate(Activation by, float* values, std::size_t count) {
  if (by == Activation::kUsual) by = count == 1 ? Activation::kSigmoid : Activation::kSoftmax;
  if (by == Activation::kSoftmax) return softmax(values, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (by == Activation::kSigmoid) values[i] = static_cast<float>(1 / (1 + std::exp(-double{values[i]})));
    if (by == Activation::kTanh) values[i] = std::tanh(values[i]);
  }
}

std::vector<std::size_t> ranks(const float* values, std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

void append_labels(const Labels& labels, const float* scores, std::string* out) {
  *out += '[';
  bool first = true;
  for (const std::size_t label : ranks(scores, labels.count)) {
    *out += std::exchange(first, false) ? "{\"score\":" : ",{\"score\":";
    append_float(scores[label], out);
    *out += ",\"label\":" + quoted_json(label_of(labels, label)) + "}";
  }
  *out += ']';
}

}  // namespace arlo::gateway
