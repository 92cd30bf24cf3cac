// Labels by batch. What a label could still gain at most bounds it: below a plan known beforehand it is left out.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "solve/tokens/plan.h"

namespace arlo::solve::tokens {

void ExactPlanner::plan(TimeNs now, std::span<const Batch> batches, Plan& plan) {
  const std::size_t n = batches.size();
  plan.choice.assign(n, kEvict);
  plan.end = now;
  rest_.assign(n + 1, 0);
  for (std::size_t b = n; b-- > 0;) {
    double best = 0;
    for (const Option& option : batches[b].options) {
      if (now + option.time < option.deadline) best = std::max(best, option.utility);
    }
    rest_[b] = rest_[b + 1] + best;
  }
  // Sums are made in another order there, so a hair below it.
  const double known = floor_of(now, batches);
  const double needed = known - 1e-9 * std::max(1.0, known);
  if (layers_.size() < n + 1) layers_.resize(n + 1);
  layers_[0].assign(1, {now, 0, -1, kEvict});
  double lost = 0;
  for (std::size_t b = 0; b < n; ++b) {
    const Layer& from = layers_[b];
    const std::vector<Option>& options = batches[b].options;
    const double least = needed - lost - rest_[b + 1];  // what was joined may have less by `lost`
    std::size_t lists = options.size() + 1;
    if (lists_.size() < lists) lists_.resize(lists);
    extend(from, {0, 0, kNever}, kEvict, least, lists_[0]);
    for (std::size_t i = 0; i < options.size(); ++i) {
      lists_[i + 1].clear();
      if (options[i].utility > 0) {
        extend(from, options[i], static_cast<int>(i), least, lists_[i + 1]);
      }
    }
    while (lists > 1) {  // in pairs: each label moves log2(options) times
      const std::size_t half = (lists + 1) / 2;
      for (std::size_t i = 0; i + half < lists; ++i) {
        join(lists_[i], lists_[i + half], joined_);
        std::swap(lists_[i], joined_);
      }
      lists = half;
    }
    std::swap(layers_[b + 1], lists_[0]);
    lost += trim(layers_[b + 1]);
  }
  const Layer& last = layers_[n];
  const Label* label = &last.back();  // clock and utility ascend: the last has the most
  plan.utility = label->utility;
  plan.bound = label->utility + lost;
  plan.end = label->clock;
  for (std::size_t b = n; b-- > 0;) {
    plan.choice[b] = label->choice;
    label = &layers_[b][static_cast<std::size_t>(label->parent)];
  }
}

// The best of the plans that take the same option wherever it fits.
double ExactPlanner::floor_of(TimeNs now, std::span<const Batch> batches) const {
  double best = 0;
  std::size_t most = 0;
  for (const Batch& batch : batches) most = std::max(most, batch.options.size());
  for (std::size_t i = 0; i < most; ++i) {
    TimeNs clock = now;
    double utility = 0;
    for (const Batch& batch : batches) {
      if (i >= batch.options.size()) continue;
      const Option& option = batch.options[i];
      if (option.utility <= 0 || clock + option.time >= option.deadline) continue;
      clock += option.time;
      utility += option.utility;
    }
    best = std::max(best, utility);
  }
  return best;
}

void ExactPlanner::extend(const Layer& from, const Option& option, int choice, double needed, Layer& into) {
  into.clear();
  for (std::size_t i = 0; i < from.size(); ++i) {
    const TimeNs clock = from[i].clock + option.time;
    if (clock >= option.deadline) break;
    const double utility = from[i].utility + option.utility;
    if (utility < needed) continue;
    into.push_back({clock, utility, static_cast<std::int32_t>(i), choice});
  }
  looked_at_ += into.size();
}

void ExactPlanner::join(const Layer& a, const Layer& b, Layer& into) {
  into.clear();
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() || j < b.size()) {
    // By clock; at equal clocks the one of more utility first, then the other is beaten.
    const bool first =
        j == b.size() ||
        (i < a.size() && (a[i].clock < b[j].clock || (a[i].clock == b[j].clock && a[i].utility >= b[j].utility)));
    const Label& label = first ? a[i++] : b[j++];
    if (into.empty() || label.utility > into.back().utility) into.push_back(label);
  }
}

// Returns what a plan may lose by it.
double ExactPlanner::trim(Layer& layer) const {
  if (layer.size() <= most_) return 0;
  // The first of a run of labels is the earliest, and has at most `width` less than any of the run.
  double width = (layer.back().utility - layer.front().utility) / static_cast<double>(4 * most_);
  std::size_t kept = layer.size();
  for (;; width *= 2) {
    kept = 0;
    double start = 0;
    for (std::size_t i = 0; i < layer.size(); ++i) {
      if (i == 0 || layer[i].utility - start > width) {
        start = layer[i].utility;
        ++kept;
      }
    }
    if (kept < most_) break;
  }
  const Label last = layer.back();
  std::size_t to = 0;
  double start = 0;
  for (std::size_t i = 0; i < layer.size(); ++i) {
    if (i != 0 && layer[i].utility - start <= width) continue;
    start = layer[i].utility;
    layer[to++] = layer[i];
  }
  layer.resize(to);
  if (layer.back().clock != last.clock) layer.push_back(last);  // the best of all stays
  return width;
}

}  // namespace arlo::solve::tokens
