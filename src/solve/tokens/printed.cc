// Algorithms 2 and 3 as printed.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "solve/tokens/plan.h"

namespace arlo::solve::tokens {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

}  // namespace

Plan PlanPrinted(TimeNs now, std::span<const Batch> batches) {
  const std::size_t n = batches.size();
  Plan plan;
  plan.choice.assign(n, kEvict);
  plan.end = now;
  if (n == 0) return plan;
  const std::size_t width = batches[0].options.size() + 1;  // state 0: not executed
  std::vector<double> utility((n + 1) * width, 0);
  std::vector<TimeNs> clock((n + 1) * width, now);
  std::vector<std::size_t> before((n + 1) * width, 0);
  const auto at = [width](std::size_t b, std::size_t l) { return b * width + l; };
  for (std::size_t b = 1; b <= n; ++b) {
    for (std::size_t l = 0; l < width; ++l) {
      bool possible = false;
      for (std::size_t from = 0; from < width; ++from) {
        const double had = utility[at(b - 1, from)];
        if (had == kImpossible) continue;
        if (l == 0) {
          if (had <= utility[at(b, 0)]) continue;
          utility[at(b, 0)] = had;
          before[at(b, 0)] = from;
          clock[at(b, 0)] = clock[at(b - 1, from)];
          continue;
        }
        const Option& option = batches[b - 1].options[l - 1];
        const TimeNs end = clock[at(b - 1, from)] + option.time;
        if (end >= option.deadline) continue;
        possible = true;
        const double sum = had + option.utility;
        if (sum <= utility[at(b, l)]) continue;
        utility[at(b, l)] = sum;
        before[at(b, l)] = from;
        clock[at(b, l)] = end;
      }
      if (l > 0 && !possible) {
        utility[at(b, l)] = kImpossible;
        clock[at(b, l)] = kNever;
      }
    }
  }
  const auto last = utility.begin() + static_cast<std::ptrdiff_t>(at(n, 0));
  auto l = static_cast<std::size_t>(std::max_element(last, utility.end()) - last);
  plan.utility = utility[at(n, l)];
  plan.end = clock[at(n, l)];
  plan.bound = std::numeric_limits<double>::infinity();
  for (std::size_t b = n; b >= 1; --b) {
    plan.choice[b - 1] = static_cast<int>(l) - 1;
    l = before[at(b, l)];
  }
  return plan;
}

Plan PlanManual(TimeNs now, std::span<const Batch> batches, int usual, double kappa) {
  Plan plan;
  plan.end = now;
  plan.bound = std::numeric_limits<double>::infinity();
  for (const Batch& batch : batches) {
    const Option& option = batch.options[static_cast<std::size_t>(usual)];
    int choice = usual;
    if (plan.end + option.time >= option.deadline) {
      choice = 0;
    } else if (batch.mean_utility > kappa) {
      choice = static_cast<int>(batch.options.size()) - 1;
    }
    plan.choice.push_back(choice);
    plan.end += batch.options[static_cast<std::size_t>(choice)].time;
    plan.utility += batch.options[static_cast<std::size_t>(choice)].utility;
  }
  return plan;
}

}  // namespace arlo::solve::tokens
