#include "gateway/desk/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "flow/pipeline/edges.h"
#include "flow/rules/answer.h"

namespace arlo::gateway {

Said said_of(const FlowSpec::Variant& variant, const RowResponse& answer, std::int32_t length) {
  const auto raw = answer.raw(variant.logits);
  std::vector<float> logits(raw.size() / sizeof(float));
  if (logits.empty()) return {};
  std::memcpy(logits.data(), raw.data(), logits.size() * sizeof(float));
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
