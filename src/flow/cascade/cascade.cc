#include "flow/cascade/cascade.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace arlo::flow {
namespace {

bool goes_on(const Guard& rule, std::int32_t stage, double confidence, const RowFacts& row) {
  return row.least >= 0 ? confidence < row.least : takes(rule, confidence, row, stage);
}

// Returns the stage that the rule wants next, available or not.
std::int32_t wanted(const Rules& rules, std::int32_t stage, double confidence, std::int32_t last) {
  const auto at = static_cast<std::size_t>(stage);
  if (at >= rules.skip.size()) return stage + 1;
  const auto& cuts = rules.skip[at];
  const auto below = std::upper_bound(cuts.begin(), cuts.end(), confidence) - cuts.begin();
  return std::min(stage + 1 + static_cast<std::int32_t>(static_cast<std::ptrdiff_t>(cuts.size()) - below), last);
}

// Returns the stage itself, else the next one, else the nearest before it; -1: there is none after `stage`.
std::int32_t nearest(StageSet present, std::int32_t stage, std::int32_t to, std::int32_t last) {
  for (std::int32_t s = to; s <= last; ++s) {
    if (has(present, s)) return s;
  }
  for (std::int32_t s = to - 1; s > stage; --s) {
    if (has(present, s)) return s;
  }
  return -1;
}

}  // namespace

Decision decide(const CascadeSpec& spec, const Rules& rules, std::int32_t stage, const Signals& signals,
                const RowFacts& row, StageSet present, std::int32_t price, std::vector<double>& scratch) {
  const double conf = confidence(spec.stages[static_cast<std::size_t>(stage)].judge, signals, row.length, scratch);
  return decide(spec, rules, stage, conf, row, present, price);
}

Decision decide(const CascadeSpec& spec, const Rules& rules, std::int32_t stage, double confidence, const RowFacts& row,
                StageSet present, std::int32_t price) {
  Decision decision{.confidence = confidence};
  const auto stages = static_cast<std::int32_t>(spec.stages.size());
  const std::int32_t last = std::min(stages - 1, row.last);
  if (stage >= stages - 1) return decision;
  const auto at = static_cast<std::size_t>(stage);
  const auto top = static_cast<std::int32_t>(rules.prices.size()) - 1;
  const Guard& rule = rules.prices[static_cast<std::size_t>(std::clamp(price, 0, top))][at];
  if (!goes_on(rule, stage, confidence, row)) {
    const bool cheap = price <= 0 || !goes_on(rules.prices.front()[at], stage, confidence, row);
    decision.reason = cheap ? Reason::kConfident : Reason::kLoad;
    return decision;
  }
  decision.reason = Reason::kClientLimit;
  if (stage >= last) return decision;
  const std::int32_t to = nearest(present, stage, wanted(rules, stage, confidence, last), last);
  decision.reason = Reason::kStageAbsent;
  if (to < 0) return decision;
  decision.exit = false;
  decision.to = to;
  return decision;
}

std::int32_t entry(StageSet present, std::int32_t first, std::int32_t stages) {
  for (std::int32_t s = first; s < stages; ++s) {
    if (has(present, s)) return s;
  }
  return -1;
}

void validate(const CascadeSpec& spec) {
  const std::size_t stages = spec.stages.size();
  need(stages >= 2 && stages <= kMaxStages,
       "stages: must be 2 to " + std::to_string(kMaxStages) + ", are " + std::to_string(stages));
  for (std::size_t i = 0; i < stages; ++i) {
    const auto& stage = spec.stages[i];
    const std::string name = "stages[" + std::to_string(i) + "]";
    validate(stage.judge, static_cast<std::size_t>(std::max(spec.labels, 0)), name);
    need(stage.weight > 0 && std::isfinite(stage.weight), name + ".weight: must be above 0");
  }
  const auto sorted = [](const auto& ids) { return std::is_sorted(ids.begin(), ids.end()); };
  for (const auto& vocabulary : spec.vocabularies) {
    need(sorted(vocabulary.special), "vocabulary.special: must ascend");
    need(sorted(vocabulary.keep), "vocabulary.keep: must ascend");
  }
}

void validate(const Rules& rules, const CascadeSpec& spec) {
  const std::size_t edges = spec.stages.size() - 1;
  need(!rules.prices.empty() && rules.prices.size() <= kMaxPrices,
       "rules: must be of 1 to " + std::to_string(kMaxPrices) + " prices");
  for (std::size_t price = 0; price < rules.prices.size(); ++price) {
    const std::string name = "rules[" + std::to_string(price) + "]";
    need(rules.prices[price].size() == edges, name + ": must have a rule for each stage but the last");
    for (std::size_t i = 0; i < edges; ++i) {
      const Guard& rule = rules.prices[price][i];
      const std::string one = name + "[" + std::to_string(i) + "]";
      validate(rule, one);
      need(!rule.follows_load() && rule.labels.empty(), one + ": is hard or soft, for all labels");
      need(rule.rule != Guard::Rule::kHard || !rule.below.empty(), one + ".below: must have a threshold");
    }
  }
  need(rules.start >= 0 && rules.start <= static_cast<std::int32_t>(edges), "start: there is no such stage");
  need(rules.skip.size() <= edges, "skip: must not be longer than the stages but the last");
  for (std::size_t i = 0; i < rules.skip.size(); ++i) {
    const auto& cuts = rules.skip[i];
    const std::string name = "skip[" + std::to_string(i) + "]";
    need(cuts.size() + i + 1 <= edges, name + ": there are not so many later stages");
    double before = 0;
    for (const double cut : cuts) {
      need(cut >= before && cut <= 1, name + ": must ascend in [0, 1]");  // false of NaN
      before = cut;
    }
  }
  validate(rules.prune);
  need(rules.ensemble == Ensemble::kNone || spec.labels > 0, "ensemble: needs answers of whole rows");
}

}  // namespace arlo::flow
