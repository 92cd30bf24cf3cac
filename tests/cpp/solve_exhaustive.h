// Eq. 1-7 as printed, and all allocations one after the other.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "solve/exact.h"

namespace arlo::solve {

// L(B), written from its definition rather than from pieces.
inline double mean_ms(const Runtime& runtime, double load) {
  const auto& points = runtime.latency_ms;
  const auto& [most, full_ms] = points.back();
  if (load > most) return full_ms * (load / most + 1) / 2;
  if (load <= 1) return points.front().second;
  std::size_t k = 1;
  while (points[k].first < load) ++k;
  const double share = (load - points[k - 1].first) / (points[k].first - points[k - 1].first);
  return points[k - 1].second + share * (points[k].second - points[k - 1].second);
}

inline double eq1(const std::vector<Runtime>& runtimes, const std::vector<int>& instances) {
  double objective = 0;
  double rest = 0;
  for (std::size_t i = 0; i < runtimes.size(); ++i) {
    const Runtime& runtime = runtimes[i];
    const double arriving = rest + runtime.demand;
    const double most = static_cast<double>(instances[i]) * runtime.capacity;
    const double served = i + 1 == runtimes.size() ? arriving : std::min(arriving, most);
    rest = std::max(arriving - most, 0.0);
    if (served > 0) objective += mean_ms(runtime, served / instances[i]) * served;
  }
  return objective;
}

inline void each_allocation(int workers, const std::vector<int>& lower,
                            const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> instances;
  const std::function<void(int)> extend = [&](int left) {
    const std::size_t i = instances.size();
    if (i + 1 == lower.size()) {
      if (left < lower[i]) return;
      instances.push_back(left);
      visit(instances);
      instances.pop_back();
      return;
    }
    for (int n = lower[i]; n <= left; ++n) {
      instances.push_back(n);
      extend(left - n);
      instances.pop_back();
    }
  };
  extend(workers);
}

}  // namespace arlo::solve
