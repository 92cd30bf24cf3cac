#include "solve/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "solve/level.h"
#include "solve/relaxation.h"
#include "solve/search.h"

namespace arlo::solve {
namespace {

// A finer bound costs more and cuts more. Most problems end in the first stage.
struct Stage {
  std::size_t amounts;   // left-over amounts that the bound distinguishes at each level
  std::uint64_t states;  // looked at before the next stage begins
};

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr Stage kStages[] = {{32, 10'000}, {512, 1'000'000}, {4096, kUnlimited}};
constexpr std::size_t kAllStates = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kWidth = 64;  // states a level after max_states
constexpr double kFirstGap = 1e-6;  // of the first allocation's value: the first limit is that much above the bound
constexpr double kWiden = 4;        // each further limit

}  // namespace

Result SolveExact(int workers, const std::vector<Runtime>& runtimes, std::uint64_t max_states) {
  Result result;
  const std::vector<Level> levels = make_levels(workers, runtimes);
  if (levels.empty()) return result;

  // A first allocation: the lower bounds, and all other workers for the longest runtime.
  std::vector<int>& best = result.instances;
  best.reserve(levels.size());
  for (const Level& level : levels) best.push_back(level.last ? level.upper : level.lower);
  const double most = value(levels, best);

  for (const Stage& stage : kStages) {
    Relaxation relaxation(levels, workers, stage.amounts);
    relaxation.tune();
    result.states += relaxation.looked_at();
    Search search(levels, workers, relaxation);
    const double slack = kRounding * (std::abs(most) + std::abs(relaxation.price()) * workers);
    const std::uint64_t left = result.states < max_states ? max_states - result.states : 0;
    const std::uint64_t states = std::min(stage.states, left);
    // An allocation found at or below a limit is the optimum: a better one would have stayed below it all the way.
    double gap = kFirstGap * most;
    while (!result.optimal && !search.gave_up()) {
      const double limit = std::min(relaxation.total() + gap, most) + slack;
      std::vector<int> found = search.run(limit, kAllStates, states);
      result.optimal = !found.empty() || (limit >= most && !search.gave_up());
      if (!found.empty()) best = std::move(found);
      gap *= kWiden;
    }
    if (search.gave_up() && states == left) {
      const std::vector<int> some = search.run(most + slack, kWidth, kUnlimited);
      if (!some.empty() && value(levels, some) < most) best = some;
    }
    result.states += search.looked_at();
    if (result.optimal || states == left) break;
  }
  result.objective = value(levels, best);
  return result;
}

}  // namespace arlo::solve
