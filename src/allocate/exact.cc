#include "allocate/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "allocate/level.h"
#include "allocate/relaxation.h"
#include "allocate/search.h"

namespace arlo::allocate {
namespace {

constexpr std::size_t kAmounts = 48;  // left-over amounts that the bound tells apart at each level
constexpr std::size_t kWidth = 64;    // states a level after max_states
constexpr double kFirstGap = 1e-6;    // of the first allocation's value: the first limit is that much above the bound
constexpr double kWiden = 4;          // each further limit
constexpr double kRounding = 1e-11;   // relative; more than the sums of doubles here can be off

}  // namespace

Result SolveExact(int workers, const std::vector<Runtime>& runtimes, std::uint64_t max_states) {
  Result result;
  const std::vector<Level> levels = make_levels(workers, runtimes);
  if (levels.empty()) return result;

  // A first allocation: the lower bounds, and all other workers for the longest runtime.
  std::vector<int> best;
  best.reserve(levels.size());
  for (const Level& level : levels) best.push_back(level.last ? level.upper : level.lower);
  double most = value(levels, best);

  Relaxation relaxation(levels, workers, kAmounts);
  relaxation.tune();
  Search search(levels, workers, relaxation);
  const double slack = kRounding * (std::abs(most) + std::abs(relaxation.price()) * workers);
  // An allocation found at or below a limit is the optimum: a better one would have stayed below it all the way.
  double gap = kFirstGap * most;
  while (!result.optimal) {
    const double limit = std::min(relaxation.total() + gap, most) + slack;
    const std::vector<int> found = search.run(limit, std::numeric_limits<std::size_t>::max(), max_states);
    if (search.gave_up()) {
      const std::vector<int> some = search.run(most + slack, kWidth, std::numeric_limits<std::uint64_t>::max());
      if (!some.empty() && value(levels, some) < most) best = some;
      break;
    }
    if (!found.empty()) best = found;
    result.optimal = !found.empty() || limit >= most;
    gap *= kWiden;
  }
  result.objective = value(levels, best);
  result.instances = std::move(best);
  result.states = search.looked_at() + relaxation.looked_at();
  return result;
}

}  // namespace arlo::allocate
