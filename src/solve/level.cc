#include "solve/level.h"

namespace arlo::solve {

std::vector<Level> make_levels(int workers, const std::vector<Runtime>& runtimes) {
  std::vector<Level> levels;
  std::int64_t needed = 0;
  for (const Runtime& runtime : runtimes) {
    const bool last = levels.size() + 1 == runtimes.size();
    const int lower = std::max(runtime.lower, last ? 1 : 0);
    needed += lower;
    levels.push_back({Curve(runtime.latency_ms), runtime.capacity, lower, 0, 0, runtime.demand, 0, last});
  }
  if (needed > workers) return {};
  int later = 0;
  double marginal = kInfinity;
  for (std::size_t i = levels.size(); i-- > 0;) {
    Level& level = levels[i];
    level.upper = level.lower + workers - static_cast<int>(needed);
    level.later = later;
    later += level.lower;
    if (level.last || level.capacity > 0) {
      // Its own demand comes first, so with at most `upper` instances nothing is left over at a load below `from`.
      const double most = level.last ? kInfinity : level.capacity;
      const double from = level.upper > 0 ? std::min(most, level.demand / level.upper) : most;
      marginal = std::min(marginal, level.curve.least_marginal(from, most));
    }
    level.marginal = marginal;
  }
  return levels;
}

double value(const std::vector<Level>& levels, const std::vector<int>& instances) {
  double objective = 0;
  double rest = 0;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const Level& level = levels[i];
    const double arriving = rest + level.demand;
    const double full = level.full(instances[i]);
    objective += level.curve.cost(level.last ? arriving : std::min(arriving, full), instances[i]);
    rest = std::max(arriving - full, 0.0);
  }
  return objective;
}

}  // namespace arlo::solve
