#include "flow/rules/judge.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace arlo::flow {
namespace {

// In place; false: not finite.
bool softmax(std::span<double> z) {
  double top = -INFINITY;
  for (const double value : z) {
    if (!std::isfinite(value)) return false;
    top = std::max(top, value);
  }
  double sum = 0;
  for (double& value : z) sum += value = std::exp(value - top);
  for (double& value : z) value /= sum;
  return true;
}

double temperature(const Calibrator& calibrator, std::int32_t length) {
  for (const auto& [up_to, t] : calibrator.by_length) {
    if (length <= up_to) return t;
  }
  return calibrator.t;
}

void dirichlet(const Calibrator& calibrator, std::span<double> out) {
  const std::size_t labels = out.size();
  std::vector<double> logs(labels);
  for (std::size_t i = 0; i < labels; ++i) logs[i] = std::log(std::max(out[i], 1e-300));
  for (std::size_t i = 0; i < labels; ++i) {
    out[i] = calibrator.bias[i];
    for (std::size_t j = 0; j < labels; ++j) out[i] += calibrator.scale[i * labels + j] * logs[j];
  }
}

// A worker may answer with more or fewer labels than its model has.
bool fits(const Judge& judge, std::size_t labels) {
  const auto& by = judge.calibrator;
  const auto as_many = [labels](std::size_t size) { return size == 0 || size == labels; };
  return as_many(judge.label_order.size()) && as_many(by.bias.size());
}

void in_order(const Judge& judge, std::span<const float> logits, std::span<double> out) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    out[judge.label_order.empty() ? i : judge.label_order[i]] = static_cast<double>(logits[i]);
  }
}

double finish(const Judge& judge, double value) {
  if (judge.calibrator.kind == Calibrator::Kind::kIsotonic) value = along(judge.calibrator.curve, value);
  return judge.squared ? value * value : value;
}

double of_tokens(const Judge& judge, const Signals& signals, std::int32_t length, std::span<double> scratch) {
  const std::size_t tokens = signals.logits.size() / signals.labels;
  std::vector<double> all(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    if (!calibrate(judge, signals.logits.subspan(i * signals.labels, signals.labels), length, scratch)) return 0;
    all[i] = score_of(judge.score, scratch);
  }
  if (judge.over == Over::kMean) {
    double sum = 0;
    for (const double value : all) sum += value;
    return finish(judge, sum / static_cast<double>(tokens));
  }
  std::size_t rank = 0;
  if (judge.over == Over::kQ10) rank = (tokens - 1) / 10;
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank), all.end());
  return finish(judge, all[rank]);
}

}  // namespace

double score_of(Score score, std::span<const double> q) {
  double first = 0;
  double second = 0;
  double entropy = 0;
  for (const double p : q) {
    if (p > first) {
      second = first;
      first = p;
    } else {
      second = std::max(second, p);
    }
    if (score == Score::kEntropy && p > 0) entropy -= p * std::log(p);
  }
  switch (score) {
    case Score::kMargin:
      return first - second;
    case Score::kEntropy:
      return q.size() < 2 ? 1 : std::clamp(1 - entropy / std::log(static_cast<double>(q.size())), 0.0, 1.0);
    default:
      return first;
  }
}

double along(const std::vector<std::pair<double, double>>& curve, double x) {
  const auto after = std::upper_bound(curve.begin(), curve.end(), x,
                                      [](double value, const auto& point) { return value < point.first; });
  if (after == curve.begin()) return curve.front().second;
  const auto& [x0, y0] = *(after - 1);
  if (after == curve.end()) return y0;
  return y0 + (after->second - y0) * ((x - x0) / (after->first - x0));
}

bool finite(const Signals& signals) {
  const auto all = [](std::span<const float> values) {
    return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  };
  return all(signals.logits) && all(signals.end_logits);
}

bool calibrate(const Judge& judge, std::span<const float> logits, std::int32_t length, std::span<double> out) {
  const Calibrator& by = judge.calibrator;
  if (!fits(judge, logits.size()) || out.size() != logits.size()) return false;
  in_order(judge, logits, out);
  switch (by.kind) {
    case Calibrator::Kind::kTemperature:
    case Calibrator::Kind::kIsotonic: {
      const double t = temperature(by, length);
      for (double& value : out) value /= t;
      return softmax(out);
    }
    case Calibrator::Kind::kVector:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = by.scale[i] * out[i] + by.bias[i];
      return softmax(out);
    case Calibrator::Kind::kDirichlet:
      if (!softmax(out)) return false;
      dirichlet(by, out);
      return softmax(out);
  }
  return false;
}

bool raw_probabilities(const Judge& judge, std::span<const float> logits, std::span<double> out) {
  if (!fits(judge, logits.size()) || out.size() != logits.size()) return false;
  in_order(judge, logits, out);
  return softmax(out);
}

double confidence(const Judge& judge, const Signals& signals, std::int32_t length, std::vector<double>& scratch) {
  if (judge.score == Score::kOutput) {
    const auto own = static_cast<double>(signals.confidence);
    return std::isfinite(own) ? finish(judge, std::clamp(own, 0.0, 1.0)) : 0;
  }
  if (signals.labels == 0 || signals.logits.empty()) return 0;
  scratch.resize(signals.labels);
  if (!signals.end_logits.empty()) {
    if (!calibrate(judge, signals.logits, length, scratch)) return 0;
    const double start = score_of(judge.score, scratch);
    if (!calibrate(judge, signals.end_logits, length, scratch)) return 0;
    return finish(judge, std::min(start, score_of(judge.score, scratch)));
  }
  if (signals.logits.size() > signals.labels) return of_tokens(judge, signals, length, scratch);
  if (!calibrate(judge, signals.logits, length, scratch)) return 0;
  return finish(judge, score_of(judge.score, scratch));
}

}  // namespace arlo::flow
