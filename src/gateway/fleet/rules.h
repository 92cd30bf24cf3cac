// Converts a deployment's rules to the types of src/flow, for cascades and pipelines alike. All throw
// std::invalid_argument, which names the field and its choices; flow::validate() checks the numbers.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/time.h"
#include "dispatch/scheduler.h"
#include "flow/rules/guard.h"
#include "flow/rules/judge.h"
#include "flow/rules/prune.h"
#include "rewrite/model.h"

namespace arlo::gateway {

using flow::need;

// Runs a check, whose errors then begin with `where`.
template <class Check>
void within(const std::string& where, Check check) {
  try {
    check();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(where + error.what());
  }
}

// Returns the value that a word of the deployment names.
template <class Kind>
Kind named(const std::string& name, std::initializer_list<std::pair<const char*, Kind>> choices, const char* field) {
  std::string all;
  for (const auto& [text, kind] : choices) {
    if (name == text) return kind;
    if (*text != '\0') all += (all.empty() ? "" : ", ") + std::string(text);
  }
  throw std::invalid_argument(std::string(field) + ": '" + name + "' is none of " + all);
}

// Whether two lists are as long, and equal in these members.
template <class List, class... Member>
bool same_in(const List& a, const List& b, Member... member) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const auto& one, const auto& other) { return ((one.*member == other.*member) && ...); });
}

// Returns the index of an output of FP32. `use`: of its values, for the message.
int floats_of(const ModelSpec& model, const std::string& name, const std::string& use);

// Begins the model that clients see, which takes rows like its first stage. `From`: a cascade or a pipeline.
template <class From>
std::shared_ptr<ModelSpec> begin_model(const From& from, const ModelSpec& entry, dispatch::VariantId variant) {
  need(from.slo_ms() > 0 && from.default_timeout_ms() > 0, "slo_ms and default_timeout_ms must be above 0");
  auto model = std::make_shared<ModelSpec>();
  model->name = from.name();
  model->variant = variant;
  model->inputs = entry.inputs;
  model->ids = entry.ids;
  model->mask = entry.mask;
  model->vocabulary = entry.vocabulary;
  model->slo_ns = TimeNs{from.slo_ms()} * kMs;
  model->default_timeout_ns = TimeNs{from.default_timeout_ms()} * kMs;
  return model;
}

flow::Calibrator calibrator_of(const v1::Calibrator& from);
flow::Score score_of(const std::string& name);  // empty: the largest probability
// `edge`: its index among the core's edges; -1: an exit.
flow::Guard guard_of(const v1::Guard& from, std::int32_t edge = -1);
flow::PruneSpec prune_of(const v1::Prune& from);
flow::Vocabulary vocabulary_of(const v1::Vocabulary& from);

}  // namespace arlo::gateway
