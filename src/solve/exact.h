// The allocation problem of the paper (section 3.3, Eq. 1-7), solved to its proven optimum. Pure: no threads, no clock,
// no I/O; the work is bounded by `max_states`, and the result reports whether the bound was reached.
//
// The problem, its terms and the value of a given allocation are defined in arlo/planning/allocation/problem.py; this
// must agree with `flow` there. Times are milliseconds.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace arlo::solve {

// One runtime; runtimes ascend in max_length.
struct Runtime {
  std::vector<std::pair<int, double>> latency_ms;  // (rows, time of the whole batch), rows ascending from 1
  int capacity = 0;                                // M: requests within the SLO
  int lower = 0;                                   // least N: Eq. 3, Eq. 7
  double demand = 0;                               // Q: requests per SLO period
};

struct Result {
  std::vector<int> instances;  // N; empty when the lower bounds add up to more than the workers
  double objective = 0;        // Eq. 1
  bool optimal = false;        // proven; false when max_states was reached: then the best allocation found
  std::uint64_t states = 0;    // looked at
};

// An N with sum `workers` that minimises Eq. 1 subject to Eq. 2-7.
Result SolveExact(int workers, const std::vector<Runtime>& runtimes, std::uint64_t max_states);

// min sum_i cost[i][N_i] with sum N_i = workers and N_i >= lower[i], for any costs (cost[i] has workers + 1 entries;
// infinity forbids). Ties go to more instances of the longer runtimes.
Result SolveSeparable(int workers, const std::vector<std::vector<double>>& cost, const std::vector<int>& lower);

}  // namespace arlo::solve
