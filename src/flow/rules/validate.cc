// Checks rules and their ranges.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "flow/rules/guard.h"
#include "flow/rules/judge.h"
#include "flow/rules/prune.h"

namespace arlo::flow {

void need(bool good, const std::string& message) {
  if (!good) throw std::invalid_argument(message);
}

namespace {

constexpr double kMostThreshold = 1.001;  // above 1: nothing is ever good enough

// Also false for a NaN.
bool within(double value, double low, double high) { return value >= low && value <= high; }
bool positive(double value) { return std::isfinite(value) && value > 0; }

template <typename Pairs>
void check_ascending(const Pairs& pairs, const std::string& name) {
  for (std::size_t i = 1; i < pairs.size(); ++i) need(pairs[i].first > pairs[i - 1].first, name + ": must ascend");
}

void check(const Calibrator& calibrator, std::size_t labels, const std::string& name) {
  need(positive(calibrator.t), name + ".t: must be above 0");
  check_ascending(calibrator.by_length, name + ".by_length");
  for (const auto& at : calibrator.by_length) need(positive(at.second), name + ".by_length: must be above 0");
  const bool vector = calibrator.kind == Calibrator::Kind::kVector;
  if (vector || calibrator.kind == Calibrator::Kind::kDirichlet) {
    const auto& scale = calibrator.scale;
    const auto& bias = calibrator.bias;
    const auto finite = [](double value) { return std::isfinite(value); };
    need(labels > 0, name + ": needs a fixed number of labels");
    need(bias.size() == labels, name + ".bias: must have one number a label");
    need(scale.size() == (vector ? labels : labels * labels),
         name + ".scale: must have " + (vector ? "labels" : "labels x labels") + " numbers");
    need(std::all_of(scale.begin(), scale.end(), finite) && std::all_of(bias.begin(), bias.end(), finite),
         name + ": must be finite");
  }
  if (calibrator.kind != Calibrator::Kind::kIsotonic) return;
  need(!calibrator.curve.empty(), name + ".curve: must have a point");
  check_ascending(calibrator.curve, name + ".curve");
  double before = 0;
  for (const auto& [x, y] : calibrator.curve) {
    need(within(x, 0, 1) && within(y, before, 1), name + ".curve: must lie in [0, 1] and never fall");
    before = y;
  }
}

}  // namespace

void validate(const Judge& judge, std::size_t labels, const std::string& name) {
  check(judge.calibrator, labels, name + ".calibrator");
  auto order = judge.label_order;
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    need(order.size() == labels && order[i] == i, name + ".label_order: must name each label once");
  }
}

void validate(const Guard& guard, const std::string& name) {
  const bool soft = guard.rule == Guard::Rule::kSoft;
  need(!soft || within(guard.c, 0, 1), name + ".c: must be in [0, 1]");
  need(!soft || guard.k > 0, name + ".k: must be above 0");
  need(guard.rule == Guard::Rule::kHard || (guard.at_least == 0 && guard.below.empty()),
       name + ": at_least and below are of the rule hard");
  need(within(guard.at_least, 0, kMostThreshold), name + ".at_least: must be in [0, 1]");
  check_ascending(guard.below, name + ".below");
  for (const auto& at : guard.below) {
    need(within(at.second, 0, kMostThreshold), name + ".below: must be in [0, 1], or a little above 1 for never");
  }
  if (!guard.follows_load()) return;
  for (const auto& curve : guard.gain) {
    const std::string message = name + ".gain: is of ascending scores of 0 to 1, and from -1 to 1";
    need(!curve.empty(), message);
    double before = 0;
    for (const auto& [score, gain] : curve) {
      need(within(score, before, 1) && within(gain, -1, 1), message);
      before = score;
    }
  }
}

void validate(const PruneSpec& prune) {
  need(prune.alpha >= 0 && std::isfinite(prune.alpha), "prune.alpha: must not be below 0");
  need(prune.alpha_max >= 0 && std::isfinite(prune.alpha_max), "prune.alpha_max: must not be below 0");
  need(within(prune.most_removed, 0, 1), "prune.most_removed: must be in [0, 1]");
  need(prune.min_words >= 1, "prune.min_words: must be at least 1");
}

}  // namespace arlo::flow
