// Branch and bound over the instances of pools. See problem.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <queue>
#include <utility>

#include "solve/flow/master.h"

namespace arlo::solve::flow {
namespace {

constexpr double kWhole = 1e-7;  // a load that is this near to a whole number is one
constexpr double kEqual = 1e-9;  // values that differ less are equal

// Rounding takes as long as a node: all of the first nodes are rounded, and then one in so many.
constexpr std::uint64_t kRounded = 16;
constexpr std::uint64_t kEach = 6;

struct Node {
  Bounds bounds;
  Relaxed relaxed;
  std::uint64_t number;
};

struct Worse {
  bool operator()(const Node& a, const Node& b) const {
    return a.relaxed.value != b.relaxed.value ? a.relaxed.value < b.relaxed.value : a.number > b.number;
  }
};

class Branching {
 public:
  Branching(const std::vector<Stage>& stages, const Limits& limits)
      : stages_(stages), limits_(limits), master_(stages, limits) {}

  Answer solve() {
    Bounds all = any();
    if (!limits_.held.empty()) hold(&all);
    open(std::move(all));
    while (!queue_.empty() && !done()) {
      if (answer_.nodes >= limits_.max_nodes) {
        answer_.bound = std::max(queue_.top().relaxed.value, answer_.value);
        return std::move(answer_);
      }
      Node node = queue_.top();
      queue_.pop();
      if (node.relaxed.value <= needed()) break;
      branch(node);
    }
    answer_.optimal = true;
    if (std::isinf(limits_.target)) answer_.bound = std::min(answer_.relaxed, answer_.value + limits_.gap);
    return std::move(answer_);
  }

 private:
  // Any number of instances.
  Bounds any() const {
    return {std::vector<int>(groups().size(), 0), std::vector<int>(groups().size(), limits_.workers)};
  }

  // No variant has more instances than `held` says.
  void hold(Bounds* bounds) const {
    for (std::size_t g = 0; g < groups().size(); ++g) {
      const auto& [rank, stage, variant, options] = groups()[g];
      if (variant >= 0) bounds->high[g] = std::min(bounds->high[g], limits_.held[stage][variant]);
    }
  }

  const std::vector<Group>& groups() const { return master_.groups(); }

  // Whether two options are one variant with two batch caps.
  bool same(std::size_t a, std::size_t b) const {
    return a != b && groups()[a].stage == groups()[b].stage && groups()[a].variant == groups()[b].variant;
  }

  bool done() const { return !answer_.instances.empty() && answer_.value >= limits_.target - kEqual; }

  // A node must promise more than this.
  double needed() const {
    return std::max(answer_.value + std::max(limits_.gap, kEqual),
                    std::isinf(limits_.target) ? kNever : limits_.target - 2 * kEqual);
  }

  // Solves a node; keeps it when it may hold something better.
  void open(Bounds bounds) {
    const bool first = answer_.nodes++ == 0;
    Relaxed relaxed = master_.solve(bounds, first ? kNever : needed());
    if (first) {
      answer_.relaxed = answer_.bound = relaxed.value;
      answer_.price = relaxed.price;
    }
    if (!relaxed.feasible || (!first && relaxed.value <= needed())) return;
    if (whole(relaxed)) return;
    if (answer_.nodes <= kRounded || answer_.nodes % kEach == 0 || answer_.instances.empty()) round(relaxed);
    if (relaxed.value > needed()) queue_.push({std::move(bounds), std::move(relaxed), answer_.nodes});
  }

  static std::vector<int> up(const std::vector<double>& loads) {
    std::vector<int> counts(loads.size());
    for (auto i = loads.size(); i-- > 0;) counts[i] = std::max(0, static_cast<int>(std::ceil(loads[i] - kWhole)));
    return counts;
  }

  // Every pool rounded up: when the workers are enough, no plan between these bounds is better.
  bool whole(const Relaxed& relaxed) {
    const std::vector<int> counts = up(relaxed.load);
    if (std::accumulate(counts.begin(), counts.end(), 0) > limits_.workers) return false;
    if (limits_.single_batch && twice(counts) >= 0) return false;
    keep(relaxed, counts);
    return true;
  }

  // Rounds the pools up or down until the workers are enough, and solves for these pools.
  void round(const Relaxed& relaxed) {
    std::vector<int> counts = up(relaxed.load);
    std::vector<std::pair<double, int>> parts;
    for (std::size_t o = 0; o < counts.size(); ++o) {
      if (counts[o] > 0) parts.emplace_back(relaxed.load[o] - (counts[o] - 1), static_cast<int>(o));
    }
    int sum = std::accumulate(counts.begin(), counts.end(), 0);
    std::sort(parts.begin(), parts.end());
    for (const auto& [part, o] : parts) {
      if (sum <= limits_.workers) break;
      --counts[o];
      --sum;
    }
    if (sum > limits_.workers) return;
    if (limits_.single_batch && twice(counts) >= 0) return;
    Bounds fixed = any();
    std::copy(counts.begin(), counts.end(), fixed.high.begin());
    Relaxed found = master_.solve(fixed, answer_.value + kEqual);
    if (found.feasible) keep(found, counts);
  }

  void keep(const Relaxed& relaxed, const std::vector<int>& counts) {
    if (relaxed.value <= answer_.value + kEqual && !answer_.instances.empty()) return;
    answer_.value = relaxed.value;
    answer_.served = relaxed.served;
    answer_.instances.assign(stages_.size(), {});
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const auto from = counts.begin() + master_.pricing().first(static_cast<int>(s));
      answer_.instances[s].assign(from, from + static_cast<std::ptrdiff_t>(stages_[s].options.size()));
    }
    answer_.mixes.clear();
    for (const auto& [policy, share] : relaxed.mixture) {
      const auto& option = master_.policy(policy).option;
      answer_.mixes.push_back({std::vector<int>(option.begin(), option.begin() + master_.stages()), share});
    }
  }

  // The first option of a variant that has instances of several batch caps; -1: there is none.
  int twice(const std::vector<int>& counts) const {
    for (std::size_t a = 0; a < counts.size(); ++a) {
      for (std::size_t b = a + 1; counts[a] > 0 && b < counts.size(); ++b) {
        if (counts[b] > 0 && same(a, b)) return static_cast<int>(a);
      }
    }
    return -1;
  }

  void branch(const Node& node) {
    if (limits_.single_batch) {
      if (const int option = twice(up(node.relaxed.load)); option >= 0) return part(node, option);
    }
    int chosen = -1;
    double most = 0;
    for (std::size_t g = 0; g < node.relaxed.count.size(); ++g) {
      const double n = node.relaxed.count[g];
      const double away = std::min(n - std::floor(n), std::ceil(n) - n);
      if (away > kWhole && away + groups()[g].rank > most) {
        most = away + groups()[g].rank;
        chosen = static_cast<int>(g);
      }
    }
    if (chosen < 0) return;  // all whole, and still too many: cannot be
    const int n = static_cast<int>(std::floor(node.relaxed.count[chosen]));
    Bounds below = node.bounds, above = node.bounds;
    below.high[chosen] = n;
    above.low[chosen] = n + 1;
    open(std::move(above));
    if (!done()) open(std::move(below));
  }

  // A variant's batch cap is this option's, or another.
  void part(const Node& node, int option) {
    Bounds with = node.bounds, without = node.bounds;
    without.high[option] = 0;
    for (std::size_t other = 0; other < node.relaxed.load.size(); ++other) {
      if (same(option, other)) with.high[other] = 0;
    }
    for (Bounds* bounds : {&with, &without}) {
      bool possible = true;
      for (std::size_t o = 0; o < bounds->low.size(); ++o) possible = possible && bounds->low[o] <= bounds->high[o];
      if (possible && !done()) open(std::move(*bounds));
    }
  }

  static constexpr double kNever = -std::numeric_limits<double>::infinity();

  const std::vector<Stage>& stages_;
  Limits limits_;
  Master master_;
  Answer answer_;
  std::priority_queue<Node, std::vector<Node>, Worse> queue_;
};

}  // namespace

Answer Solve(const std::vector<Stage>& stages, const Limits& limits) { return Branching(stages, limits).solve(); }

}  // namespace arlo::solve::flow
