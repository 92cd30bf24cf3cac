#include "flow/cascade/cascade.h"

#include <algorithm>
#include <cmath>

namespace arlo::flow {
namespace {

// splitmix64 (Steele, Lea, Flood: OOPSLA'14).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

double threshold(const Rule& rule, std::int32_t length) {
  for (const auto& [up_to, t] : rule.t) {
    if (length <= up_to) return t;
  }
  return rule.t.back().second;
}

bool goes_on(const Rule& rule, std::int32_t stage, double confidence, const RowFacts& row) {
  if (row.least >= 0) return confidence < row.least;
  const double p = escalation_probability(rule, confidence, row.length);
  if (p >= 1 || p <= 0) return p >= 1;
  return hash01(row.seed, row.row, stage) < p;
}

// The stage that the rule wants next, whether it is there or not.
std::int32_t wanted(const Rules& rules, std::int32_t stage, double confidence, std::int32_t last) {
  const auto at = static_cast<std::size_t>(stage);
  if (at >= rules.skip.size()) return stage + 1;
  const auto& cuts = rules.skip[at];
  const auto below = std::upper_bound(cuts.begin(), cuts.end(), confidence) - cuts.begin();
  return std::min(stage + 1 + static_cast<std::int32_t>(static_cast<std::ptrdiff_t>(cuts.size()) - below), last);
}

// The stage itself, else the next one, else the nearest before it; -1: there is none after `stage`.
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

std::string_view reason_name(Reason reason) {
  static constexpr std::string_view kNames[kReasons] = {"confident", "final",        "client_limit", "deadline",
                                                        "load",      "stage_absent", "stage_failed"};
  return kNames[static_cast<std::size_t>(reason)];
}

double hash01(std::uint64_t seed, std::uint64_t row, std::int32_t stage) {
  const std::uint64_t h = mix(mix(seed) ^ (8 * row + static_cast<std::uint64_t>(stage)));
  return static_cast<double>(h >> 11U) * 0x1p-53;
}

double escalation_probability(const Rule& rule, double confidence, std::int32_t length) {
  if (rule.kind == Rule::Kind::kHard) return confidence < threshold(rule, length) ? 1 : 0;
  if (confidence <= rule.c || rule.c >= 1) return 1;
  const double norm = (confidence - rule.c) / (1 - rule.c) - 0.5;
  return 1 / (1 + std::exp(rule.k * norm));
}

Decision decide(const CascadeSpec& spec, const Rules& rules, std::int32_t stage, const Signals& signals,
                const RowFacts& row, StageSet present, std::int32_t price, std::vector<double>& scratch) {
  const double conf = confidence(spec.stages[static_cast<std::size_t>(stage)], signals, row.length, scratch);
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
  const Rule& rule = rules.prices[static_cast<std::size_t>(std::clamp(price, 0, top))][at];
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

void Mix::add(double weight, std::span<const double> probabilities) {
  sum_.resize(probabilities.size());
  for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += weight * probabilities[i];
  weights_ += weight;
  ++stages_;
}

void Mix::probabilities(std::vector<double>& out) const {
  out.resize(sum_.size());
  for (std::size_t i = 0; i < sum_.size(); ++i) out[i] = sum_[i] / weights_;
}

}  // namespace arlo::flow
