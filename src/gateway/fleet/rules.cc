#include "gateway/fleet/rules.h"

#include <vector>

namespace arlo::gateway {
namespace {

flow::ByLength by_length(const google::protobuf::RepeatedPtrField<v1::AtLength>& from) {
  flow::ByLength pairs;
  for (const auto& at : from) pairs.emplace_back(static_cast<std::int32_t>(at.length()), at.value());
  return pairs;
}

template <class Numbers>
std::vector<std::pair<double, double>> curve_of(const Numbers& from, const Numbers& to, const char* fields) {
  need(from.size() == to.size(), std::string(fields) + " must have as many numbers");
  std::vector<std::pair<double, double>> curve;
  curve.reserve(static_cast<std::size_t>(from.size()));
  for (int i = 0; i < from.size(); ++i) curve.emplace_back(from[i], to[i]);
  return curve;
}

}  // namespace

int floats_of(const ModelSpec& model, const std::string& name, const std::string& use) {
  const int at = model.find_output(name);
  need(at >= 0 && model.outputs[static_cast<std::size_t>(at)].datatype == "FP32",
       "'" + model.name + "' has no output '" + name + "' of FP32, " + use);
  return at;
}

flow::Calibrator calibrator_of(const v1::Calibrator& from) {
  using Kind = flow::Calibrator::Kind;
  flow::Calibrator to;
  to.kind = named<Kind>(from.kind(),
                        {{"temperature", Kind::kTemperature},
                         {"vector", Kind::kVector},
                         {"dirichlet", Kind::kDirichlet},
                         {"isotonic", Kind::kIsotonic}},
                        "calibrator.kind");
  to.t = from.t();
  to.by_length = by_length(from.by_length());
  to.scale.assign(from.scale().begin(), from.scale().end());
  to.bias.assign(from.bias().begin(), from.bias().end());
  to.curve = curve_of(from.curve_from(), from.curve_to(), "calibrator.curve_from and curve_to");
  return to;
}

flow::Score score_of(const std::string& name) {
  using flow::Score;
  return named<Score>(name,
                      {{"max", Score::kMax},
                       {"margin", Score::kMargin},
                       {"entropy", Score::kEntropy},
                       {"output", Score::kOutput},
                       {"", Score::kMax}},
                      "score");
}

flow::Guard guard_of(const v1::Guard& from, std::int32_t edge) {
  using Rule = flow::Guard::Rule;
  flow::Guard to;
  to.edge = edge;
  to.rule = named<Rule>(from.rule(),
                        {{"hard", Rule::kHard},
                         {"soft", Rule::kSoft},
                         {"price", Rule::kPrice},
                         {"planned", Rule::kPlanned},
                         {"", Rule::kHard}},
                        "rule");
  to.at_least = from.at_least();
  to.below = by_length(from.below());
  to.c = from.c();
  to.k = from.k();
  to.labels.assign(from.labels().begin(), from.labels().end());
  for (const auto& gain : from.gain()) to.gain.push_back(curve_of(gain.score(), gain.gain(), "gain.score and gain"));
  return to;
}

flow::PruneSpec prune_of(const v1::Prune& from) {
  return {.alpha = from.alpha(),
          .over_all = from.mean_over_all(),
          .to_level = from.to_level(),
          .min_words = static_cast<std::int32_t>(from.min_words()),
          .alpha_max = from.alpha_max(),
          .most_removed = from.most_removed()};
}

flow::Vocabulary vocabulary_of(const v1::Vocabulary& from) {
  flow::Vocabulary to;
  const std::string& bits = from.word_start();
  to.word_start.assign(bits.begin(), bits.end());
  to.special.assign(from.special().begin(), from.special().end());
  to.keep.assign(from.keep().begin(), from.keep().end());
  return to;
}

}  // namespace arlo::gateway
