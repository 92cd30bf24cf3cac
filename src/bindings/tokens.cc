// Token counts of batches in Python: the planners, the batching, the simulation. Arguments are checked here.
#include "simulate/tokens.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "solve/tokens/plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace arlo::simulate {
namespace {

using solve::tokens::Batch;
using solve::tokens::Plan;
// Options (time in ns, utility, deadline in ns), and the mean utility of the rows.
using BatchTuple = std::pair<std::vector<std::tuple<TimeNs, double, TimeNs>>, double>;
using PlanTuple = std::tuple<std::vector<int>, double, double, TimeNs>;
template <typename T>
using Input = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr TimeNs kMost = TimeNs{1} << 60;

void need(bool right, const char* message) {
  if (!right) throw nb::value_error(message);
}

std::vector<Batch> read(const std::vector<BatchTuple>& given, TimeNs now, bool alike) {
  need(now >= 0 && now < kMost, "now must be 0 to 2^60 ns");
  std::vector<Batch> batches;
  for (const auto& [options, mean] : given) {
    Batch batch;
    batch.mean_utility = mean;
    for (const auto& [time, utility, deadline] : options) {
      need(time >= 0 && time < kMost / 64 && std::isfinite(utility),
           "options: times of 0 to 2^54 ns, finite utilities");
      batch.options.push_back({time, utility, deadline});
    }
    need(!alike || (!options.empty() && options.size() == given.front().first.size()),
         "batches must have equally many options, at least one");
    batches.push_back(std::move(batch));
  }
  return batches;
}

PlanTuple told(Plan&& plan) { return {std::move(plan.choice), plan.utility, plan.bound, plan.end}; }

PlanTuple printed(TimeNs now, const std::vector<BatchTuple>& given, bool literal) {
  return told(solve::tokens::PlanPrinted(now, read(given, now, true), literal));
}

PlanTuple manual(TimeNs now, const std::vector<BatchTuple>& given, int usual, double kappa) {
  const std::vector<Batch> batches = read(given, now, true);
  need(usual >= 0 && (batches.empty() || usual < static_cast<int>(batches.front().options.size())),
       "usual must be one of the options");
  return told(solve::tokens::PlanManual(now, batches, usual, kappa));
}

PlanTuple exact(TimeNs now, const std::vector<BatchTuple>& given, std::size_t labels) {
  need(labels >= 2, "labels must be at least 2");
  const std::vector<Batch> batches = read(given, now, false);
  Plan plan;
  solve::tokens::ExactPlanner(labels).plan(now, batches, plan);
  return told(std::move(plan));
}

// [(number of the query in order, arrival, deadline, utility)] of each batch, in order of creation.
std::vector<std::vector<std::size_t>> batch(const std::vector<std::tuple<TimeNs, TimeNs, double>>& queries,
                                            TimeNs delta, std::size_t most, TimeNs eta, double mu) {
  solve::tokens::Queue queue({delta, most, eta, mu});
  TimeNs before = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const auto& [arrived, deadline, utility] = queries[i];
    need(arrived >= before && arrived < kMost && deadline > arrived && deadline < 2 * kMost,
         "queries must ascend by arrival, and be due later");
    before = arrived;
    queue.add({i, arrived, deadline, utility, 0});
  }
  std::vector<std::vector<std::size_t>> made;
  for (const solve::tokens::Waiting& waiting : queue.batches()) {
    made.emplace_back();
    for (const solve::tokens::Query& row : waiting.rows) made.back().push_back(row.id);
  }
  return made;
}

tokens::Policy policy_of(const std::string& name) {
  if (name == "printed") return tokens::Policy::kPrinted;
  if (name == "exact") return tokens::Policy::kExact;
  if (name == "price") return tokens::Policy::kPrice;
  if (name == "fixed") return tokens::Policy::kFixed;
  need(name == "load", "policy must be printed, exact, price, fixed or load");
  return tokens::Policy::kLoad;
}

nb::dict run(const Input<TimeNs>& arrived, const Input<std::uint32_t>& kind,
             const std::vector<std::vector<std::pair<std::int64_t, TimeNs>>>& latency,
             const std::vector<std::tuple<TimeNs, double, std::vector<double>>>& kinds, const std::string& policy,
             std::size_t fixed, TimeNs delta, std::size_t most, TimeNs eta, double mu, std::size_t beta, TimeNs initial,
             double kappa, const std::vector<std::pair<double, std::size_t>>& by_rate, TimeNs window, TimeNs switching,
             double spread, int workers, std::uint64_t seed, TimeNs warmup, double share, TimeNs horizon) {
  tokens::Options o;
  need(!latency.empty() && latency.size() <= 64, "latency: 1 to 64 token counts");
  for (const auto& points : latency) {
    need(!points.empty(), "latency: a point for each token count");
    std::vector<LatencyTable::Point> table;
    for (const auto& [rows, ns] : points) {
      need(rows >= 1 && rows <= 65536 && ns > 0 && ns < TimeNs{3'600'000'000'000},
           "latency: rows 1 to 65536, up to 1 h");
      need(table.empty() || rows > table.back().batch, "latency: rows ascend");
      table.push_back({1, rows, ns});
    }
    o.latency.emplace_back(std::move(table));
  }
  for (const auto& [slo, utility, accuracy] : kinds) {
    need(slo > 0 && slo < kMost && std::isfinite(utility) && utility >= 0, "kinds: an SLO above 0, utility at least 0");
    need(accuracy.size() == latency.size(), "kinds: an accuracy for each token count");
    for (const double share_right : accuracy) need(share_right >= 0 && share_right <= 1, "accuracy must be 0 to 1");
    o.kinds.push_back({slo, utility, accuracy});
  }
  o.policy = policy_of(policy);
  need(fixed < latency.size(), "fixed must be one of the token counts");
  for (const auto& [rate, count] : by_rate) need(rate > 0 && count < latency.size(), "by_rate: (rate, token count)");
  need(delta >= 0 && delta < kMost && eta >= 0 && most >= 1 && mu >= 0, "delta, eta and mu must be at least 0, most 1");
  need(window > 0 && horizon > 0 && switching >= 0 && switching < kMost / 64 && spread >= 0 && spread <= 1 &&
           workers >= 1 && workers <= 10'000 && share > 0,
       "window, horizon and share must be above 0, spread 0 to 1, workers 1 to 10,000");
  need(arrived.size() == kind.size(), "arrived and kind must be equally long");
  TimeNs before = 0;
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    need(arrived.data()[i] >= before && arrived.data()[i] < kMost, "arrived must ascend from 0");
    need(kind.data()[i] < kinds.size(), "kind must be one of the kinds");
    before = arrived.data()[i];
  }
  o.fixed = fixed;
  o.alike = {delta, most, eta, mu};
  o.beta = beta;
  o.initial = initial;
  o.kappa = kappa;
  o.by_rate = by_rate;
  o.window = window;
  o.switching = switching;
  o.spread = spread;
  o.workers = workers;
  o.seed = seed;
  o.warmup = warmup;
  o.share = share;
  o.horizon = horizon;
  tokens::Result found;
  {
    const nb::gil_scoped_release release;
    found = tokens::Run(o, {arrived.data(), arrived.size()}, {kind.data(), kind.size()});
  }
  nb::dict d;
  std::vector<std::vector<std::uint64_t>> outcomes;
  for (const auto& types : found.outcomes) outcomes.emplace_back(types.begin(), types.end());
  d["outcomes"] = outcomes;
  d["utility"] = found.utility;
  d["offered"] = found.offered;
  d["rows"] = found.rows;
  d["batches"] = found.batches;
  d["shares"] = std::vector<std::uint64_t>(found.shares.begin(), found.shares.end());
  d["plans"] = found.plans;
  d["busy_ns"] = found.busy;
  return d;
}

}  // namespace

void bind_tokens(nb::module_& m) {
  m.def(
      "tokens_printed", &printed, "now"_a, "batches"_a, "literal"_a = false,
      "OTAS, Algorithm 2: (option of each batch or -1, utility, bound, end in ns); see src/solve/tokens/plan.h.\n\n"
      "`batches` by deadline, each (options, mean utility of its rows); an option is (time, utility, deadline), times\n"
      "in ns. `literal`: with the printed initial states, which may run a batch past its deadline.");
  m.def("tokens_manual", &manual, "now"_a, "batches"_a, "usual"_a, "kappa"_a = 0.8,
        "OTAS, Algorithm 3, with the answer of tokens_printed; `usual` is the option that the rate asks for.");
  m.def("tokens_exact", &exact, "now"_a, "batches"_a, "labels"_a = 256,
        "The plan of the most utility, with the answer of tokens_printed. Options may differ in number and deadline.");
  m.def("tokens_batch", &batch, "queries"_a, "delta"_a, "most"_a, "eta"_a, "mu"_a,
        "OTAS, Algorithm 1: the numbers of the queries in each batch. `queries` by arrival: (arrival, deadline,\n"
        "utility), times in ns.");
  m.def("simulate_tokens", &run, "arrived"_a, "kind"_a, nb::kw_only(), "latency"_a, "kinds"_a, "policy"_a,
        "fixed"_a = 0, "delta"_a, "most"_a, "eta"_a, "mu"_a, "beta"_a, "initial"_a, "kappa"_a, "by_rate"_a, "window"_a,
        "switching"_a = 0, "spread"_a = 0.0, "workers"_a = 1, "seed"_a = 0, "warmup"_a = 0, "share"_a = 1.0,
        "horizon"_a = 1'000'000'000,
        nb::sig("def simulate_tokens(arrived: NDArray[numpy.int64], kind: NDArray[numpy.uint32], *, "
                "latency: Sequence[Sequence[tuple[int, int]]], kinds: Sequence[tuple[int, float, Sequence[float]]], "
                "policy: str, fixed: int = 0, delta: int, most: int, eta: int, mu: float, beta: int, initial: int, "
                "kappa: float, by_rate: Sequence[tuple[float, int]], window: int, switching: int = 0, "
                "spread: float = 0.0, workers: int = 1, seed: int = 0, warmup: int = 0, share: float = 1.0, "
                "horizon: int = 1000000000) -> dict[str, typing.Any]"),
        "OTAS simulated (src/simulate/tokens.h): outcomes by kind and type, utility, rows and batches by token count,\n"
        "batches by their share of accurate answers in hundredths. Times in ns; `latency`: [(rows, ns)] of each token\n"
        "count; `kinds`: (SLO, utility, accuracy by token count).");
}

}  // namespace arlo::simulate
