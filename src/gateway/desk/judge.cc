#include "gateway/desk/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

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

namespace {

Said said_of(const FlowSpec::Variant& variant, const RowResponse& answer, std::int32_t length) {
  const auto logits = floats(answer.raw(variant.logits));
  std::vector<double> q(logits.size());
  if (logits.empty() || !flow::calibrate(variant.judge, logits, length, q)) return {};
  const auto label = static_cast<std::int32_t>(std::max_element(q.begin(), q.end()) - q.begin());
  return {label, std::move(q)};
}

// Sets the answer's probabilities: its logits become their logarithms.
void set_probabilities(FlowAnswer& answer, int logits, std::span<const double> q) {
  auto made = std::make_shared<std::string>(q.size() * sizeof(float), '\0');
  for (std::size_t i = 0; i < q.size(); ++i) {
    const auto value = static_cast<float>(std::log(q[i]));
    std::memcpy(made->data() + i * sizeof(float), &value, sizeof(float));
  }
  answer.parsed.set(logits, {static_cast<std::int64_t>(q.size())}, *made);
  answer.made = std::move(made);
}

}  // namespace

bool goes_beside(const FlowState& state, const FlowSpec::Edge& edge) {
  return state.core.spec().edges[static_cast<std::size_t>(edge.core)].falls_back;
}

Judged judge(const VisitCall& visit) {
  const FlowState& state = *visit.root->state;
  const auto& spec = visit.at();
  const Row& row = visit.rows.front();
  Judged judged;
  if (spec.judged) judged.said = said_of(visit.of(), row.parsed, row.length);
  const auto& q = judged.said.q;
  std::vector<double> scores;
  scores.reserve(spec.edges.size());
  for (const auto& edge : spec.edges) scores.push_back(q.empty() ? 0 : flow::score_of(edge.score, q));
  flow::pipeline::take_edges(spec.guards, spec.first, static_cast<std::size_t>(visit.variant), judged.said.label,
                             scores, {.row = visit.root->number, .length = row.length}, state.core, visit.id,
                             judged.edges);
  const auto& from = *visit.source;
  if (!from.weights.empty() && !from.said.empty() && from.said.size() == q.size()) {
    flow::Mix mix;
    mix.add(from.weights[0], from.said);
    mix.add(from.weights[1], q);
    mix.probabilities(judged.together);
  }
  const bool beside = std::any_of(judged.edges.begin(), judged.edges.end(), [&](std::int32_t e) {
    return goes_beside(state, spec.edges[static_cast<std::size_t>(e)]);
  });
  if (!judged.edges.empty() && !spec.told && !beside) return judged;
  auto answer = std::make_shared<FlowAnswer>(FlowAnswer{.stage = visit.stage,
                                                        .variant = visit.variant,
                                                        .tokens = visit.tokens,
                                                        .way = visit.way(),
                                                        .route = visit.route(),
                                                        .body = row.response,
                                                        .parsed = row.parsed,
                                                        .made = nullptr,
                                                        .last = judged.edges.empty()});
  if (!judged.together.empty()) set_probabilities(*answer, visit.of().logits, judged.together);
  judged.answer = std::move(answer);
  return judged;
}

}  // namespace arlo::gateway
