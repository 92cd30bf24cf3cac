#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "flow/cascade/spec.h"

namespace arlo::flow {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

}  // namespace

void validate(const CascadeSpec& spec) {
  const std::size_t stages = spec.stages.size();
  if (stages < 2 || stages > kMaxStages) {
    refuse("stages: must be 2 to " + std::to_string(kMaxStages) + ", are " + std::to_string(stages));
  }
  for (std::size_t i = 0; i < stages; ++i) {
    const auto& stage = spec.stages[i];
    const std::string name = "stages[" + std::to_string(i) + "]";
    validate(stage.judge, static_cast<std::size_t>(std::max(spec.labels, 0)), name);
    if (!(stage.weight > 0) || !std::isfinite(stage.weight)) refuse(name + ".weight: must be above 0");
  }
  const auto sorted = [](const auto& ids) { return std::is_sorted(ids.begin(), ids.end()); };
  for (const auto& vocabulary : spec.vocabularies) {
    if (!sorted(vocabulary.special)) refuse("vocabulary.special: must ascend");
    if (!sorted(vocabulary.keep)) refuse("vocabulary.keep: must ascend");
  }
}

void validate(const Rules& rules, const CascadeSpec& spec) {
  const std::size_t edges = spec.stages.size() - 1;
  if (rules.prices.empty() || rules.prices.size() > kMaxPrices) {
    refuse("rules: must be of 1 to " + std::to_string(kMaxPrices) + " prices");
  }
  for (std::size_t price = 0; price < rules.prices.size(); ++price) {
    const std::string name = "rules[" + std::to_string(price) + "]";
    if (rules.prices[price].size() != edges) refuse(name + ": must have a rule for each stage but the last");
    for (std::size_t i = 0; i < edges; ++i) {
      const Guard& rule = rules.prices[price][i];
      const std::string one = name + "[" + std::to_string(i) + "]";
      validate(rule, one);
      if (rule.follows_load() || !rule.labels.empty()) refuse(one + ": is hard or soft, for all labels");
      if (rule.rule == Guard::Rule::kHard && rule.below.empty()) refuse(one + ".below: must have a threshold");
    }
  }
  if (rules.start < 0 || rules.start > static_cast<std::int32_t>(edges)) refuse("start: there is no such stage");
  if (rules.skip.size() > edges) refuse("skip: must not be longer than the stages but the last");
  for (std::size_t i = 0; i < rules.skip.size(); ++i) {
    const auto& cuts = rules.skip[i];
    const std::string name = "skip[" + std::to_string(i) + "]";
    if (cuts.size() + i + 1 > edges) refuse(name + ": there are not so many later stages");
    double before = 0;
    for (const double cut : cuts) {
      const bool ascends = cut >= before && cut <= 1;  // false of NaN
      if (!ascends) refuse(name + ": must ascend in [0, 1]");
      before = cut;
    }
  }
  validate(rules.prune);
  if (rules.ensemble != Ensemble::kNone && spec.labels <= 0) refuse("ensemble: needs answers of whole rows");
}

}  // namespace arlo::flow
