// Costs that depend on each other only through the number of workers: any tables, no shape assumed.
//
// A Lagrange price for workers makes the runtimes independent and bounds the optimum from below; an allocation near it
// from above. A choice that costs its runtime's least plus more than the gap cannot be in an optimum. The dynamic
// programme over the workers used then has little to do; where the tables are far from convex it does all its work.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>

#include "solve/curve.h"
#include "solve/exact.h"

namespace arlo::solve {
namespace {

struct Path {
  std::vector<int> instances;
  double used = 0;
  double cost = 0;
};

// Whether more never costs more, from `from` to `to`.
bool falling(const std::vector<double>& cost, int from, int to) {
  return std::is_sorted(cost.begin() + from, cost.begin() + to + 1, std::greater<>());
}

class Separable {
 public:
  Separable(int workers, const std::vector<std::vector<double>>& cost, const std::vector<int>& lower)
      : workers_(workers), cost_(cost), lower_(lower), upper_(lower.size(), workers), least_(lower.size()) {}

  Result solve() {
    Result result;
    if (cost_.empty() || !trim()) return result;
    tune();
    result.instances = programme(fill());
    result.states = looked_at_;
    if (result.instances.empty()) return result;
    for (std::size_t i = 0; i < cost_.size(); ++i) result.objective += cost_[i][result.instances[i]];
    result.optimal = true;
    return result;
  }

 private:
  // Narrows lower and upper to the allowed numbers; false when there are none.
  bool trim() {
    std::int64_t needed = 0;
    for (std::size_t i = 0; i < cost_.size(); ++i) {
      while (lower_[i] <= workers_ && cost_[i][lower_[i]] == kInfinity) ++lower_[i];
      needed += lower_[i];
    }
    if (needed > workers_) return false;
    free_ = workers_ - static_cast<int>(needed);
    std::int64_t possible = 0;
    for (std::size_t i = 0; i < cost_.size(); ++i) {
      upper_[i] = lower_[i] + free_;
      while (cost_[i][upper_[i]] == kInfinity) --upper_[i];
      possible += upper_[i];
    }
    return possible >= workers_;
  }

  Path path(std::vector<int> instances) const {
    Path result{std::move(instances)};
    for (std::size_t i = 0; i < cost_.size(); ++i) {
      result.used += result.instances[i];
      result.cost += cost_[i][result.instances[i]];
    }
    return result;
  }

  // The cheapest allocation when each worker costs `price`.
  Path priced(double price) {
    price_ = price;
    std::vector<int> instances(cost_.size());
    for (std::size_t i = 0; i < cost_.size(); ++i) {
      least_[i] = kInfinity;
      for (int n = lower_[i]; n <= upper_[i]; ++n) {
        const double reduced = cost_[i][n] + price * n;
        if (reduced < least_[i]) {
          least_[i] = reduced;
          instances[i] = n;
        }
      }
      looked_at_ += upper_[i] - lower_[i] + 1;
    }
    return path(std::move(instances));
  }

  // The price with the best bound, and an allocation there with no more than all workers.
  void tune() {
    few_ = path(lower_);
    Path many = path(upper_);
    if (few_.used == many.used) {
      priced(0);
      return;
    }
    for (int tried = 0; tried < kPrices; ++tried) {
      Path next = priced((few_.cost - many.cost) / (many.used - few_.used));
      const double line = few_.cost + price_ * few_.used;
      const bool better = next.cost + price_ * next.used < line - 1e-12 * std::abs(line);
      if (next.used > workers_) {
        if (!better) return;
        many = std::move(next);
      } else {
        if (better || next.used > few_.used) few_ = std::move(next);
        if (!better || few_.used == workers_) return;
      }
    }
  }

  // Eq. 1 of some allocation of all workers: one by one to where they are worth most. Infinite when that ends nowhere.
  double fill() const {
    std::vector<int> instances = few_.instances;
    for (auto left = static_cast<int>(workers_ - few_.used); left > 0; --left) {
      std::optional<std::size_t> to;
      double gain = -kInfinity;
      for (std::size_t i = 0; i < cost_.size(); ++i) {
        if (instances[i] == upper_[i]) continue;
        const double here = cost_[i][instances[i]] - cost_[i][instances[i] + 1];
        if (here >= gain && here > -kInfinity) {
          gain = here;
          to = i;
        }
      }
      if (!to) return kInfinity;
      ++instances[*to];
    }
    return path(std::move(instances)).cost;
  }

  // The best allocation of at most `limit`.
  std::vector<int> programme(double limit) {
    const std::size_t count = cost_.size();
    const bool extra_never_hurts = falling(cost_.back(), lower_.back(), lower_.back() + free_);
    const std::size_t size = static_cast<std::size_t>(workers_) + 1;
    // best[g]: the cheapest way to give g workers to the runtimes so far; chosen[i][g]: what runtime i gets of them.
    std::vector<double> best(size, kInfinity);
    std::vector<double> next(size);
    std::vector<std::vector<int>> chosen(count, std::vector<int>(size, -1));
    best[0] = 0;
    double rest = -price_ * workers_;  // the bound for the runtimes that remain, less the price of all workers
    double scale = std::abs(rest);
    for (const double least : least_) {
      rest += least;
      scale += std::abs(least);
    }
    const double room = limit + kRounding * scale;
    double bound = 0;  // for the runtimes before
    int later = std::accumulate(lower_.begin(), lower_.end(), 0);
    for (std::size_t i = 0; i < count; ++i) {
      rest -= least_[i];
      later -= lower_[i];
      const double allowed = room - rest;
      std::vector<int> numbers;  // worth looking at
      for (int n = lower_[i]; n <= upper_[i]; ++n) {
        if (bound + (cost_[i][n] + price_ * n) <= allowed) numbers.push_back(n);
      }
      std::fill(next.begin(), next.end(), kInfinity);
      double cheapest = kInfinity;
      for (int used = 0; used <= workers_; ++used) {
        if (best[used] == kInfinity || (extra_never_hurts && best[used] >= cheapest)) continue;
        cheapest = std::min(cheapest, best[used]);
        for (const int n : numbers) {
          if (used + n > workers_ - later) break;
          ++looked_at_;
          const double total = best[used] + cost_[i][n];
          // Smaller `used` come first, so of equal ones the one with more instances here stays.
          if (total < next[used + n] && total + price_ * (used + n) <= allowed) {
            next[used + n] = total;
            chosen[i][used + n] = n;
          }
        }
      }
      bound += least_[i];
      best.swap(next);
    }
    if (best[workers_] == kInfinity) return {};
    std::vector<int> instances(count);
    for (int i = static_cast<int>(count) - 1, left = workers_; i >= 0; --i) {
      instances[i] = chosen[i][left];
      left -= instances[i];
    }
    return instances;
  }

  int workers_;
  const std::vector<std::vector<double>>& cost_;
  std::vector<int> lower_;
  std::vector<int> upper_;
  int free_ = 0;               // workers that no lower bound needs
  std::vector<double> least_;  // of cost + price * n, for each runtime
  double price_ = 0;
  Path few_;
  std::uint64_t looked_at_ = 0;
};

}  // namespace

Result SolveSeparable(int workers, const std::vector<std::vector<double>>& cost, const std::vector<int>& lower) {
  return Separable(workers, cost, lower).solve();
}

}  // namespace arlo::solve
