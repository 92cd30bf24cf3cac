#include "gateway/fleet/guard.h"

#include <algorithm>

#include "gateway/fleet/cascade.h"

namespace arlo::gateway {
namespace {

MaybeFault check_gain(const v1::PipelineEdge& edge, int variants, const std::string& where) {
  if (edge.threshold() != "price" && edge.threshold() != "planned") {
    return invalid(where + "threshold '" + edge.threshold() + "' is none of price, planned");
  }
  if (edge.at_least() > 0 || edge.below() > 0) {
    return invalid(where + "at_least and below are numbers, or a threshold that follows the load, not both");
  }
  if (edge.gain_size() != variants) return invalid(where + "a gain for each variant of its tail, with a threshold");
  for (const auto& gain : edge.gain()) {
    const auto& score = gain.score();
    const bool good = !score.empty() && score.size() == gain.gain_size() &&
                      std::is_sorted(score.begin(), score.end()) &&
                      std::all_of(score.begin(), score.end(), [](double x) { return x >= 0 && x <= 1; }) &&
                      std::all_of(gain.gain().begin(), gain.gain().end(), [](double x) { return x >= -1 && x <= 1; });
    if (!good) return invalid(where + "gains are of ascending scores of 0 to 1, and from -1 to 1");
  }
  return {};
}

}  // namespace

MaybeFault check_edge(const v1::Pipeline& from, const v1::PipelineEdge& edge, const FindModel& model,
                      const std::string& pipeline) {
  const auto& tail = from.stages(static_cast<int>(edge.from()));
  const auto* head = edge.to() < 0 ? nullptr : &from.stages(edge.to());
  const std::string where = pipeline + "edge " + tail.name() + ">" + (head == nullptr ? "exit" : head->name()) + ": ";
  const auto& score = edge.score();
  if (!score.empty() && score != "max" && score != "margin" && score != "entropy") {
    return invalid(where + "score '" + score + "' is none of max, margin, entropy");
  }
  const bool judges = edge.at_least() > 0 || edge.below() > 0 || !edge.labels().empty() || !edge.threshold().empty();
  if (judges && tail.logits().empty()) {
    return invalid(pipeline + "stage '" + tail.name() + "' has no logits for the guards of its edges");
  }
  if (!edge.threshold().empty()) {
    if (auto fault = check_gain(edge, tail.variants_size(), where)) return fault;
  }
  const bool makes_one = !edge.has_chunks() && !edge.has_expand();
  if ((edge.falls_back() || !edge.weights().empty()) && (head == nullptr || !makes_one)) {
    return invalid(where + "one answer goes with another where the row goes on as one row to a stage");
  }
  if (edge.weights().empty()) return {};
  const bool good = edge.weights_size() == 2 && edge.weights(0) >= 0 && edge.weights(1) >= 0 &&
                    edge.weights(0) + edge.weights(1) > 0 && edge.weights(0) + edge.weights(1) < 1e9;
  if (!good) return invalid(where + "weights are two numbers of at least 0, of which one is above");
  if (head->logits().empty() || tail.logits().empty()) {
    return invalid(where + "answers are mixed by their logits, which both stages must have");
  }
  const auto output = [&](const v1::PipelineStage& stage) {
    const auto one = model(stage.variants(0).model());
    return one->outputs[static_cast<std::size_t>(one->find_output(stage.logits()))];
  };
  const auto a = output(tail);
  const auto b = output(*head);
  if (a.dims != b.dims || a.token_level || b.token_level || a.dims.size() != 1) {
    return invalid(where + "answers are mixed that have the same labels, for the row");
  }
  return {};
}

flow::pipeline::Guard guard_of(const v1::PipelineEdge& from, std::int32_t edge) {
  using Threshold = flow::pipeline::Guard::Threshold;
  flow::pipeline::Guard to{.edge = edge,
                           .threshold = from.threshold() == "price"     ? Threshold::kPrice
                                        : from.threshold() == "planned" ? Threshold::kPlanned
                                                                        : Threshold::kFixed,
                           .at_least = from.at_least(),
                           .below = from.below(),
                           .gain = {},
                           .labels = {from.labels().begin(), from.labels().end()}};
  for (const auto& gain : from.gain()) {
    auto& points = to.gain.emplace_back();
    for (int i = 0; i < std::min(gain.score_size(), gain.gain_size()); ++i) {
      points.emplace_back(gain.score(i), gain.gain(i));
    }
  }
  return to;
}

flow::Score score_of(const v1::PipelineEdge& edge) {
  if (edge.score() == "margin") return flow::Score::kMargin;
  return edge.score() == "entropy" ? flow::Score::kEntropy : flow::Score::kMax;
}

std::shared_ptr<const FlowSpec::Prune> prune_of(const v1::Prune& from) {
  auto to = std::make_shared<FlowSpec::Prune>();
  to->spec = {.alpha = from.alpha(),
              .over_all = from.mean_over_all(),
              .to_level = from.to_level(),
              .min_words = static_cast<std::int32_t>(from.min_words())};
  to->vocabulary = vocabulary_of(from.vocabulary());
  to->levels.assign(from.levels().begin(), from.levels().end());
  return to;
}

}  // namespace arlo::gateway
