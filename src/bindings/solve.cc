// The exact allocation solver in Python. Arguments are checked here: the solver itself takes them as they are.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "solve/exact.h"
#include "solve/flow/problem.h"

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

using OptionTuple = std::tuple<int, double, double, double>;
using StageTuple = std::tuple<int, int, double, double, std::vector<double>, std::vector<double>, std::vector<double>,
                              std::vector<OptionTuple>>;
using FlowTuple = std::tuple<std::vector<std::vector<int>>, std::vector<std::pair<std::vector<int>, double>>, double,
                             double, double, double, double, bool, std::uint64_t>;

bool all_of(const std::vector<double>& values, double least, double most) {
  for (const double value : values) {
    const bool inside = value >= least && value <= most;  // false for NaN
    if (!inside) return false;
  }
  return true;
}

void check(const flow::Stage& stage, std::size_t number, const std::vector<flow::Stage>& before, double* prefixes) {
  const bool root = number == 0;
  need(root ? stage.parent == -1 : stage.parent >= 0 && stage.parent < static_cast<int>(number),
       "stages: the first is the root with parent -1, every other one comes after its parent");
  need(stage.variants >= 1 && stage.variants <= 1000, "variants must be 1 to 1,000");
  const std::size_t above = root ? 1 : static_cast<std::size_t>(before[stage.parent].variants);
  prefixes[number] = (root ? 1 : prefixes[stage.parent]) * stage.variants;
  need(stage.factor.size() == above && all_of(stage.factor, 0, 1e12), "factor: one for each variant of the parent");
  need(stage.exit.size() == static_cast<std::size_t>(stage.variants) && all_of(stage.exit, 0, 1),
       "exit: a share for each variant");
  need(static_cast<double>(stage.accuracy.size()) == prefixes[number] && all_of(stage.accuracy, 0, 1),
       "accuracy: from 0 to 1 for each choice of variants from the root to the stage");
  need(stage.weight >= 0 && stage.weight <= 1, "weight must be from 0 to 1");
  need(!std::isnan(stage.limit), "limit must not be NaN");
  need(!stage.options.empty() && stage.options.size() <= 10'000, "options must be 1 to 10,000");
  for (const flow::Option& option : stage.options) {
    need(option.variant >= 0 && option.variant < stage.variants, "an option's variant is one of the stage's");
    const bool right = option.work >= 0 && option.work <= 1e9 && option.latency >= 0 && option.latency <= 1e9;
    need(right && option.energy >= 0 && option.energy <= 1e9,
         "an option's work, latency and energy must be finite and at least 0");
  }
}

FlowTuple plan_flow(int workers, const std::vector<StageTuple>& stages, double served, bool served_only,
                    bool single_batch, double target, double gap, std::uint64_t max_nodes,
                    const std::vector<std::vector<int>>& held, double unserved) {
  need(workers >= 0 && workers <= 100'000, "workers must be 0 to 100,000");
  need(!stages.empty() && stages.size() <= flow::kMostStages, "stages must be 1 to 17");
  need(served >= 0 && served <= 1, "served must be from 0 to 1");
  need(unserved >= 1 && unserved <= 1e12, "unserved must be from 1 to 1e12");
  std::vector<flow::Stage> tree;
  std::vector<double> prefixes(stages.size());
  for (const auto& [parent, variants, weight, limit, factor, exit, accuracy, options] : stages) {
    flow::Stage stage{parent, variants, weight, limit, factor, exit, accuracy, {}};
    for (const auto& [variant, work, latency, energy] : options) {
      stage.options.push_back({variant, work, latency, energy});
    }
    check(stage, tree.size(), tree, prefixes.data());
    tree.push_back(std::move(stage));
  }
  need(held.empty() || held.size() == tree.size(), "held needs as many stages as there are");
  for (std::size_t s = 0; s < held.size(); ++s) {
    need(held[s].size() == static_cast<std::size_t>(tree[s].variants), "held needs a number for each variant");
    need(std::all_of(held[s].begin(), held[s].end(), [](int n) { return n >= 0; }), "held must be at least 0");
  }
  const nb::gil_scoped_release release;
  flow::Answer found =
      flow::Solve(tree, {workers, served, served_only, single_batch, target, gap, max_nodes, held, unserved});
  std::vector<std::pair<std::vector<int>, double>> mixes;
  mixes.reserve(found.mixes.size());
  for (flow::Mix& mix : found.mixes) mixes.emplace_back(std::move(mix.options), mix.weight);
  return {std::move(found.instances),
          std::move(mixes),
          found.value,
          found.served,
          found.relaxed,
          found.bound,
          found.price,
          found.optimal,
          found.nodes};
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
  m.def(
      "plan_flow", &plan_flow, "workers"_a, "stages"_a, "served"_a, "served_only"_a, "single_batch"_a, "target"_a,
      "gap"_a, "max_nodes"_a, "held"_a = std::vector<std::vector<int>>{}, "unserved"_a = 1000.0,
      "The plan of greatest value for a flow: (instances by stage and option, [(option of each stage, share)],\n"
      "value, served, relaxed, bound, price, optimal, nodes); see src/solve/flow/problem.h.\n\n"
      "`stages`, parents first: (parent, variants, weight, limit in s, factor by the parent's variant, exit share by\n"
      "variant, accuracy by the variants from the root, options [(variant, workers per row/s, latency in s, what the\n"
      "energy of one row/s is worth)]). The root's factor is [roots per second]. `served`: share of the demand to\n"
      "plan for; `served_only`: how much can be served, whatever its value; `single_batch`: one batch cap for each\n"
      "variant; `target`: the first plan of this value will do (infinity: the best one); `gap`: what the best one may\n"
      "be better by; after `max_nodes` the best one found; `held`: the most instances by stage and variant, empty:\n"
      "any number; `unserved`: what a share of the demand is worth beside its value. ValueError when wrong.");
}

}  // namespace arlo::solve
