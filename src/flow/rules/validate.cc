// Checks rules and their ranges.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "flow/rules/guard.h"
#include "flow/rules/judge.h"
#include "flow/rules/prune.h"

namespace arlo::flow {
namespace {

constexpr double kMostThreshold = 1.001;  // above 1: nothing is ever good enough

[[noreturn]] void bad(const std::string& what) { throw std::invalid_argument(what); }

// Also false for a NaN.
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

}  // namespace

void validate(const Judge& judge, std::size_t labels, const std::string& name) {
  check(judge.calibrator, labels, name + ".calibrator");
  auto order = judge.label_order;
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order.size() != labels || order[i] != i) bad(name + ".label_order: must name each label once");
  }
}

void validate(const Guard& guard, const std::string& name) {
  if (guard.rule == Guard::Rule::kSoft) {
    if (!within(guard.c, 0, 1)) bad(name + ".c: must be in [0, 1]");
    if (!(guard.k > 0)) bad(name + ".k: must be above 0");
  }
  if (guard.rule != Guard::Rule::kHard && (guard.at_least != 0 || !guard.below.empty())) {
    bad(name + ": at_least and below are of the rule hard");
  }
  if (!within(guard.at_least, 0, kMostThreshold)) bad(name + ".at_least: must be in [0, 1]");
  check_ascending(guard.below, name + ".below");
  for (const auto& [length, t] : guard.below) {
    if (!within(t, 0, kMostThreshold)) bad(name + ".below: must be in [0, 1], or a little above 1 for never");
  }
  if (!guard.follows_load()) return;
  for (const auto& curve : guard.gain) {
    const bool good = !curve.empty() && std::is_sorted(curve.begin(), curve.end(), [](const auto& a, const auto& b) {
      return a.first < b.first;
    }) && std::all_of(curve.begin(), curve.end(), [](const auto& point) {
      return within(point.first, 0, 1) && within(point.second, -1, 1);
    });
    if (!good) bad(name + ".gain: is of ascending scores of 0 to 1, and from -1 to 1");
  }
}

void validate(const PruneSpec& prune) {
  if (!(prune.alpha >= 0) || !std::isfinite(prune.alpha)) bad("prune.alpha: must not be below 0");
  if (!(prune.alpha_max >= 0) || !std::isfinite(prune.alpha_max)) bad("prune.alpha_max: must not be below 0");
  if (!within(prune.most_removed, 0, 1)) bad("prune.most_removed: must be in [0, 1]");
  if (prune.min_words < 1) bad("prune.min_words: must be at least 1");
}

}  // namespace arlo::flow
