#include "gateway/desk/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "flow/pipeline/edges.h"
#include "flow/rules/answer.h"

namespace arlo::gateway {

void floats(std::string_view raw, std::vector<float>& out) {
  out.resize(raw.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), raw.data(), out.size() * sizeof(float));
}

std::vector<float> floats(std::string_view raw) {
  std::vector<float> values;
  floats(raw, values);
  return values;
}

std::int32_t label_of(std::string_view logits, std::int32_t labels, std::span<const std::uint32_t> order) {
  auto values = floats(logits);
  if (values.empty() || (labels > 0 && values.size() != static_cast<std::size_t>(labels))) return -1;
  if (!flow::finite({.logits = values})) return -1;
  if (!order.empty()) {
    auto ordered = values;
    for (std::size_t i = 0; i < values.size(); ++i) ordered[order[i]] = values[i];
    values = std::move(ordered);
  }
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::vector<std::int32_t> labels_of(const FlowRow& row) {
  std::vector<const FlowAnswer*> answers;
  for (const auto& answer : row.answers) {
    if (answer.last) answers.push_back(&answer);
  }
  std::sort(answers.begin(), answers.end(), [](const auto* a, const auto* b) { return a->way < b->way; });
  std::vector<std::int32_t> labels;
  for (const auto* answer : answers) {
    const auto& stage = row.state->model->flow->stages[static_cast<std::size_t>(answer->stage)];
    const int logits = stage.variants[static_cast<std::size_t>(answer->variant)].logits;
    const auto label = logits < 0 ? -1 : label_of(answer->parsed.raw(logits));
    if (label < 0) return {};
    labels.push_back(label);
  }
  return labels;
}

Said said_of(const FlowSpec::Variant& variant, const RowResponse& answer, std::int32_t length) {
  const auto logits = floats(answer.raw(variant.logits));
  if (logits.empty()) return {};
  Said said;
  said.q.resize(logits.size());
  if (!flow::calibrate(variant.judge, logits, length, said.q)) return {};
  said.label = static_cast<std::int32_t>(std::max_element(said.q.begin(), said.q.end()) - said.q.begin());
  return said;
}

std::vector<std::int32_t> edges_of(const FlowSpec::Stage& stage, std::size_t variant, const Said& said,
                                   const flow::RowFacts& row, const flow::pipeline::Pipeline& core,
                                   flow::pipeline::VisitId visit) {
  std::vector<double> scores;
  scores.reserve(stage.edges.size());
  for (const auto& edge : stage.edges) scores.push_back(said.q.empty() ? 0 : flow::score_of(edge.score, said.q));
  std::vector<std::int32_t> taken;
  flow::pipeline::take_edges(stage.guards, stage.first, variant, said.label, scores, row, core, visit, taken);
  return taken;
}

std::vector<double> mixed(std::span<const double> weights, std::span<const double> before,
                          std::span<const double> own) {
  if (before.empty() || before.size() != own.size()) return {};
  flow::Mix mix;
  mix.add(weights[0], before);
  mix.add(weights[1], own);
  std::vector<double> q;
  mix.probabilities(q);
  return q;
}

void set_probabilities(FlowAnswer& answer, int logits, std::span<const double> q) {
  auto made = std::make_shared<std::string>(q.size() * sizeof(float), '\0');
  for (std::size_t i = 0; i < q.size(); ++i) {
    const auto value = static_cast<float>(std::log(q[i]));
    std::memcpy(made->data() + i * sizeof(float), &value, sizeof(float));
  }
  answer.parsed.set(logits, {static_cast<std::int64_t>(q.size())}, *made);
  answer.made = std::move(made);
}

}  // namespace arlo::gateway
