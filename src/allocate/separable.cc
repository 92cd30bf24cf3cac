#include <algorithm>
#include <cstddef>
#include <limits>

#include "allocate/exact.h"

namespace arlo::allocate {

Result SolveSeparable(int workers, const std::vector<std::vector<double>>& cost, const std::vector<int>& lower) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::size_t count = cost.size();
  // best[i][g]: cheapest way to give g workers to the runtimes 0..i-1; chosen[i][g]: what runtime i-1 gets of them.
  std::vector<std::vector<double>> best(count + 1, std::vector<double>(workers + 1, kInfinity));
  std::vector<std::vector<int>> chosen(count + 1, std::vector<int>(workers + 1, -1));
  best[0][0] = 0;
  Result result;
  for (std::size_t i = 0; i < count; ++i) {
    for (int used = 0; used <= workers; ++used) {
      if (best[i][used] == kInfinity) continue;
      for (int n = lower[i]; used + n <= workers; ++n) {
        ++result.states;
        const double total = best[i][used] + cost[i][n];
        if (total <= best[i + 1][used + n] && total < kInfinity) {
          best[i + 1][used + n] = total;
          chosen[i + 1][used + n] = n;
        }
      }
    }
  }
  if (count == 0 || best[count][workers] == kInfinity) return result;
  result.objective = best[count][workers];
  result.optimal = true;
  result.instances.resize(count);
  for (int i = static_cast<int>(count), left = workers; i > 0; --i) {
    result.instances[i - 1] = chosen[i][left];
    left -= chosen[i][left];
  }
  return result;
}

}  // namespace arlo::allocate
