// The scores that a classifier or reranker gives, and what is made of them, whatever the words are. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gateway/front/api_json.h"

namespace arlo::gateway {

// The output that is a score of each label; null: the model has none.
const OutputSpec* logits_of(const ModelSpec& model);
bool is_classifier(const ModelSpec& model);  // as far as its outputs tell: it has several labels
bool is_reranker(const ModelSpec& model);    // it has one
// Asks for the labels' scores, of a model of several tasks for those of `task`; or for the one score of a reranker.
// UNIMPLEMENTED: the model gives none.
MaybeFault ask_labels(const ModelSpec& model, const std::string& task, inference::ModelInferRequest* out);
MaybeFault ask_score(const ModelSpec& model, inference::ModelInferRequest* out);

// Names of its labels; of a model of several tasks those of one, and how many of a row's logits are its own.
struct Labels {
  const std::vector<std::string>* names;
  std::size_t count;
};
Labels labels_of(const ModelSpec& model, const std::string& task, std::size_t logits);
std::string label_of(const Labels& labels, std::size_t label);
// What a model's activation makes of the logits of a row, in place.
void activate(Activation by, float* values, std::size_t count);
// Places in descending order of their values; the first of those that are alike comes first.
std::vector<std::size_t> ranks(const float* values, std::size_t count);
// [{"score":s,"label":l},..] in descending order.
void append_labels(const Labels& labels, const float* scores, std::string* out);

}  // namespace arlo::gateway
