// Labels by batch. What a label could still gain at most bounds it: below a plan known beforehand it is left out. The
// bound prices time: batches to come gain at most what they are worth beyond the price, and the time that is left, the
// price. Any price will do; that of the fluid problem is nearly the tightest. A run with few labels finds the plan.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "solve/tokens/plan.h"

namespace arlo::solve::tokens {
namespace {

constexpr std::size_t kFew = 16;              // labels of the run that finds a plan
constexpr int kSteps = 40;                    // to the price
constexpr TimeNs kLongest = TimeNs{1} << 60;  // beyond now: deadlines later than that bind nothing

}  // namespace

void ExactPlanner::plan(TimeNs now, std::span<const Batch> batches, Plan& plan) {
  const std::size_t n = batches.size();
  plan.choice.assign(n, kEvict);
  plan.end = now;
  find_bounds(now, batches);
  double known = floor_of(now, batches);
  if (most_ > kFew) {
    run(now, batches, known, kFew, plan);
    known = std::max(known, plan.utility);
  }
  run(now, batches, known, most_, plan);
}

void ExactPlanner::find_bounds(TimeNs now, std::span<const Batch> batches) {
  const std::size_t n = batches.size();
  end_ = now;
  for (const Batch& batch : batches) {
    for (const Option& option : batch.options) {
      if (now + option.time < option.deadline) end_ = std::max(end_, std::min(option.deadline, now + kLongest));
    }
  }
  price_ = 0;
  double low = 0;
  double high = 0;
  for (int i = 0; i < kSteps; ++i) {
    if (busy(now, batches, price_) <= static_cast<double>(end_ - now)) {
      high = price_;
      if (price_ == 0) break;
    } else {
      low = price_;
    }
    price_ = high > 0 ? (low + high) / 2 : price_ > 0 ? 4 * price_ : 1e-9;
  }
  rest_.assign(n + 1, 0);
  gain_.assign(n + 1, 0);
  for (std::size_t b = n; b-- > 0;) {
    double best = 0;
    double gain = 0;
    for (const Option& option : batches[b].options) {
      if (now + option.time >= option.deadline) continue;
      best = std::max(best, option.utility);
      gain = std::max(gain, option.utility - price_ * static_cast<double>(option.time));
    }
    rest_[b] = rest_[b + 1] + best;
    gain_[b] = gain_[b + 1] + gain;
  }
}

// Time of the options that are worth the most beyond the price.
double ExactPlanner::busy(TimeNs now, std::span<const Batch> batches, double price) {
  double sum = 0;
  for (const Batch& batch : batches) {
    double best = 0;
    double time = 0;
    for (const Option& option : batch.options) {
      const double gain = option.utility - price * static_cast<double>(option.time);
      if (now + option.time >= option.deadline || gain <= best) continue;
      best = gain;
      time = static_cast<double>(option.time);
    }
    sum += time;
  }
  return sum;
}

void ExactPlanner::run(TimeNs now, std::span<const Batch> batches, double known, std::size_t most, Plan& plan) {
  const std::size_t n = batches.size();
  // Sums are made in another order there, so a hair below it.
  const double needed = known - 1e-9 * std::max(1.0, known);
  if (layers_.size() < n + 1) layers_.resize(n + 1);
  layers_[0].assign(1, {now, 0, -1, kEvict});
  double lost = 0;
  for (std::size_t b = 0; b < n; ++b) {
    const Layer& from = layers_[b];
    const std::vector<Option>& options = batches[b].options;
    const double least = needed - lost;  // joined labels may have less by `lost`
    std::size_t lists = options.size() + 1;
    if (lists_.size() < lists) lists_.resize(lists);
    extend(from, {0, 0, kNever}, kEvict, least, b + 1, lists_[0]);
    for (std::size_t i = 0; i < options.size(); ++i) {
      lists_[i + 1].clear();
      if (options[i].utility > 0) {
        extend(from, options[i], static_cast<int>(i), least, b + 1, lists_[i + 1]);
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
    lost += trim(layers_[b + 1], most);
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
double ExactPlanner::floor_of(TimeNs now, std::span<const Batch> batches) {
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

void ExactPlanner::extend(const Layer& from, const Option& option, int choice, double least, std::size_t next,
                          Layer& into) {
  into.clear();
  for (std::size_t i = 0; i < from.size(); ++i) {
    const TimeNs clock = from[i].clock + option.time;
    if (clock >= option.deadline) break;
    const double utility = from[i].utility + option.utility;
    const double left = static_cast<double>(end_ - clock);
    if (utility + std::min(rest_[next], gain_[next] + price_ * std::max(left, 0.0)) < least) continue;
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
double ExactPlanner::trim(Layer& layer, std::size_t most) {
  if (layer.size() <= most) return 0;
  // The first of a run of labels is the earliest, and has at most `width` less than any of the run.
  double width = (layer.back().utility - layer.front().utility) / static_cast<double>(4 * most);
  for (;; width *= 2) {
    std::size_t kept = 0;
    double start = 0;
    for (std::size_t i = 0; i < layer.size(); ++i) {
      if (i == 0 || layer[i].utility - start > width) {
        start = layer[i].utility;
        ++kept;
      }
    }
    if (kept < most) break;
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
