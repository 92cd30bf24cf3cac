// The exact allocation solver in Python. Arguments are checked here: the solver itself takes them as they are.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "solve/exact.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace arlo::solve {
namespace {

using RuntimeTuple = std::tuple<std::vector<std::pair<int, double>>, int, int, double>;
using Answer = std::tuple<std::vector<int>, double, bool, std::uint64_t>;

constexpr int kMostWorkers = 1'000'000;       // far beyond any cluster, and its sums fit an int
constexpr int kMostRequests = 1'000'000'000;  // of an instance within the SLO; times the workers it fits an int64

void need(bool right, const std::string& message) {
  if (!right) throw nb::value_error(message.c_str());
}

bool in_range(int value) { return value >= 0 && value <= kMostWorkers; }

void check(const Runtime& runtime) {
  int before = 0;
  for (const auto& [rows, ms] : runtime.latency_ms) {
    need(rows > before && std::isfinite(ms) && ms > 0, "latency: ascending rows and finite times above 0 ms");
    before = rows;
  }
  need(!runtime.latency_ms.empty() && runtime.latency_ms.front().first == 1, "latency: the first point has 1 row");
  need(runtime.capacity >= 0 && runtime.capacity <= kMostRequests, "capacity must be 0 to 1,000,000,000");
  need(in_range(runtime.lower), "lower must be 0 to 1,000,000");
  need(std::isfinite(runtime.demand) && runtime.demand >= 0, "demand must be finite and at least 0");
}

Answer answer(Result&& result) {
  return {std::move(result.instances), result.objective, result.optimal, result.states};
}

Answer exact(int workers, const std::vector<RuntimeTuple>& runtimes, std::uint64_t max_states) {
  need(in_range(workers), "workers must be 0 to 1,000,000");
  std::vector<Runtime> chain;
  for (const auto& [latency_ms, capacity, lower, demand] : runtimes) {
    chain.push_back({latency_ms, capacity, lower, demand});
    check(chain.back());
  }
  const nb::gil_scoped_release release;
  return answer(SolveExact(workers, chain, max_states));
}

Answer separable(int workers, const std::vector<std::vector<double>>& cost, const std::vector<int>& lower) {
  need(in_range(workers), "workers must be 0 to 1,000,000");
  need(cost.size() == lower.size(), "cost and lower need an entry for each runtime");
  for (std::size_t i = 0; i < cost.size(); ++i) {
    need(in_range(lower[i]), "lower must be 0 to 1,000,000");
    need(cost[i].size() == static_cast<std::size_t>(workers) + 1, "cost needs an entry for 0 to `workers` instances");
    for (const double c : cost[i]) need(!std::isnan(c) && c > -HUGE_VAL, "cost must not be NaN or minus infinity");
  }
  const nb::gil_scoped_release release;
  return answer(SolveSeparable(workers, cost, lower));
}

}  // namespace

void bind(nb::module_& m) {
  m.def("allocate_exact", &exact, "workers"_a, "runtimes"_a, "max_states"_a,
        "The allocation that minimises Eq. 1 subject to Eq. 2-7: (instances, objective, optimal, states).\n\n"
        "`runtimes` by ascending max_length, each (latency, capacity, lower, demand): latency as [(rows, ms of the\n"
        "batch)] with rows ascending from 1, capacity M, lower the least N, demand Q in requests per SLO period. The\n"
        "objective is in ms x requests. `optimal` is False when `max_states` partial allocations were looked at: then\n"
        "it is the best one found. Of equally good ones: the most instances on the longest runtime, then on the next.\n"
        "No instances when the lower bounds add up to more than `workers`. ValueError for values out of range.");
  m.def("allocate_separable", &separable, "workers"_a, "cost"_a, "lower"_a,
        "The allocation that minimises the sum of cost[i][N_i], N_i >= lower[i], with the answer of allocate_exact.\n\n"
        "`cost[i]` has an entry for 0 to `workers` instances, in any unit; infinity forbids. Always optimal; no\n"
        "instances when nothing is allowed. Ties as for allocate_exact.");
}

}  // namespace arlo::solve
