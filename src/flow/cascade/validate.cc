#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "flow/cascade/spec.h"

namespace arlo::flow {
namespace {

constexpr double kMostThreshold = 1.001;  // above 1: nothing is ever good enough

[[noreturn]] void bad(const std::string& what) { throw std::invalid_argument(what); }

// False of a NaN, too.
bool within(double value, double low, double high) { return value >= low && value <= high; }

template <typename Pairs>
void check_ascending(const Pairs& pairs, const std::string& name) {
  for (std::size_t i = 1; i < pairs.size(); ++i) {
    if (pairs[i].first <= pairs[i - 1].first) bad(name + ": must ascend");
  }
}

void check(const Calibrator& calibrator, std::size_t labels, const std::string& name) {
  const auto positive = [](double t) { return std::isfinite(t) && t > 0; };
  if (!positive(calibrator.t)) bad(name + ".t: must be above 0");
  check_ascending(calibrator.by_length, name + ".by_length");
  for (const auto& [length, t] : calibrator.by_length) {
    if (!positive(t)) bad(name + ".by_length: temperatures must be above 0");
  }
  const bool vector = calibrator.kind == Calibrator::Kind::kVector;
  const bool dirichlet = calibrator.kind == Calibrator::Kind::kDirichlet;
  if (vector || dirichlet) {
    if (labels == 0) bad(name + ": needs a fixed number of labels");
    if (calibrator.bias.size() != labels) bad(name + ".bias: must have one number a label");
    if (calibrator.scale.size() != (vector ? labels : labels * labels)) {
      bad(name + ".scale: must have " + std::string(vector ? "labels" : "labels x labels") + " numbers");
    }
    const auto finite = [](double value) { return std::isfinite(value); };
    if (!std::all_of(calibrator.scale.begin(), calibrator.scale.end(), finite) ||
        !std::all_of(calibrator.bias.begin(), calibrator.bias.end(), finite)) {
      bad(name + ": must be finite");
    }
  }
  if (calibrator.kind != Calibrator::Kind::kIsotonic) return;
  if (calibrator.curve.empty()) bad(name + ".curve: must have a point");
  check_ascending(calibrator.curve, name + ".curve");
  double before = 0;
  for (const auto& [x, y] : calibrator.curve) {
    if (!within(x, 0, 1) || !within(y, before, 1)) bad(name + ".curve: must lie in [0, 1] and never fall");
    before = y;
  }
}

void check(const Rule& rule, const std::string& name) {
  if (rule.kind == Rule::Kind::kSoft) {
    if (!within(rule.c, 0, 1)) bad(name + ".c: must be in [0, 1]");
    if (!(rule.k > 0)) bad(name + ".k: must be above 0");
    return;
  }
  if (rule.t.empty()) bad(name + ".t: must have a threshold");
  check_ascending(rule.t, name + ".t");
  for (const auto& [length, t] : rule.t) {
    if (!within(t, 0, kMostThreshold)) bad(name + ".t: must be in [0, 1], or a little above 1 for never");
  }
}

}  // namespace

void validate(const CascadeSpec& spec) {
  const std::size_t stages = spec.stages.size();
  if (stages < 2 || stages > kMaxStages) {
    bad("stages: must be 2 to " + std::to_string(kMaxStages) + ", are " + std::to_string(stages));
  }
  const auto labels = static_cast<std::size_t>(std::max(spec.labels, 0));
  for (std::size_t i = 0; i < stages; ++i) {
    const auto& stage = spec.stages[i];
    const std::string name = "stages[" + std::to_string(i) + "]";
    check(stage.calibrator, labels, name + ".calibrator");
    if (!(stage.weight > 0) || !std::isfinite(stage.weight)) bad(name + ".weight: must be above 0");
    auto order = stage.label_order;
    std::sort(order.begin(), order.end());
    for (std::size_t j = 0; j < order.size(); ++j) {
      if (order.size() != labels || order[j] != j) bad(name + ".label_order: must name each label once");
    }
  }
  const auto sorted = [](const auto& ids) { return std::is_sorted(ids.begin(), ids.end()); };
  for (const auto& vocabulary : spec.vocabularies) {
    if (!sorted(vocabulary.special)) bad("vocabulary.special: must ascend");
    if (!sorted(vocabulary.keep)) bad("vocabulary.keep: must ascend");
  }
}

void validate(const Rules& rules, const CascadeSpec& spec) {
  const std::size_t edges = spec.stages.size() - 1;
  if (rules.prices.empty() || rules.prices.size() > kMaxPrices) {
    bad("rules: must be of 1 to " + std::to_string(kMaxPrices) + " prices");
  }
  for (std::size_t price = 0; price < rules.prices.size(); ++price) {
    const std::string name = "rules[" + std::to_string(price) + "]";
    if (rules.prices[price].size() != edges) bad(name + ": must have a rule for each stage but the last");
    for (std::size_t i = 0; i < edges; ++i) check(rules.prices[price][i], name + "[" + std::to_string(i) + "]");
  }
  if (rules.start < 0 || rules.start > static_cast<std::int32_t>(edges)) bad("start: there is no such stage");
  if (rules.skip.size() > edges) bad("skip: must not be longer than the stages but the last");
  for (std::size_t i = 0; i < rules.skip.size(); ++i) {
    const auto& cuts = rules.skip[i];
    const std::string name = "skip[" + std::to_string(i) + "]";
    if (cuts.size() + i + 1 > edges) bad(name + ": there are not so many later stages");
    for (std::size_t j = 0; j < cuts.size(); ++j) {
      if (!within(cuts[j], j > 0 ? cuts[j - 1] : 0, 1)) bad(name + ": must ascend in [0, 1]");
    }
  }
  if (!(rules.prune.alpha >= 0) || !std::isfinite(rules.prune.alpha)) bad("prune.alpha: must not be below 0");
  if (!(rules.prune.alpha_max >= 0) || !std::isfinite(rules.prune.alpha_max)) {
    bad("prune.alpha_max: must not be below 0");
  }
  if (!within(rules.prune.most_removed, 0, 1)) bad("prune.most_removed: must be in [0, 1]");
  if (rules.prune.min_words < 1) bad("prune.min_words: must be at least 1");
  if (rules.ensemble != Ensemble::kNone && spec.labels <= 0) bad("ensemble: needs answers of whole rows");
}

}  // namespace arlo::flow
