// Token counts of batches in Python: the planners, the batching, the rules. Arguments are checked here.
#include <nanobind/nanobind.h>
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
#include "simulate/checks.h"
#include "solve/tokens/chooser.h"
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

constexpr TimeNs kMost = TimeNs{1} << 60;

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

PlanTuple printed(TimeNs now, const std::vector<BatchTuple>& given) {
  return told(solve::tokens::PlanPrinted(now, read(given, now, true)));
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
    queue.add(
        {.id = static_cast<dispatch::RequestHandle>(i), .arrived = arrived, .deadline = deadline, .utility = utility});
  }
  std::vector<std::vector<std::size_t>> made;
  for (const solve::tokens::Waiting& waiting : queue.batches()) {
    made.emplace_back();
    for (const solve::tokens::Query& row : waiting.rows) made.back().push_back(row.id);
  }
  return made;
}

void make_counts(solve::tokens::TokenCounts* self, const std::vector<dispatch::VariantId>& variants,
                 const std::vector<std::vector<double>>& accuracy, const std::string& policy, std::size_t fixed,
                 TimeNs delta, std::size_t most, TimeNs eta, double mu, std::size_t beta, TimeNs initial, double kappa,
                 TimeNs window, TimeNs horizon, double share, std::size_t looked_at,
                 const std::vector<double>& energy) {
  for (const auto& kind : accuracy) {
    need(kind.size() == variants.size(), "accuracy: of each kind a number for each variant");
    for (const double right : kind) need(right >= 0 && right <= 1, "accuracy must be 0 to 1");
  }
  need(delta >= 0 && delta < kMost && eta >= 0 && mu >= 0 && window < kMost, "delta, eta and mu must be at least 0");
  new (self) solve::tokens::TokenCounts{variants,
                                        {.policy = solve::tokens::parse_token_policy(policy),
                                         .fixed = fixed,
                                         .alike = {delta, most, eta, mu},
                                         .accuracy = accuracy,
                                         .energy = energy,
                                         .beta = beta,
                                         .initial = initial,
                                         .kappa = kappa,
                                         .window = window,
                                         .horizon = horizon,
                                         .share = share,
                                         .looked_at = looked_at}};
}

}  // namespace

void bind_tokens(nb::module_& m) {
  m.def(
      "tokens_printed", &printed, "now"_a, "batches"_a,
      "OTAS, Algorithm 2: (option of each batch or -1, utility, bound, end in ns); see src/solve/tokens/plan.h.\n\n"
      "`batches` by deadline, each (options, mean utility of its rows); an option is (time, utility, deadline), times\n"
      "in ns.");
  m.def("tokens_manual", &manual, "now"_a, "batches"_a, "usual"_a, "kappa"_a = 0.8,
        "OTAS, Algorithm 3, with the answer of tokens_printed; `usual` is the option that the rate asks for.");
  m.def("tokens_exact", &exact, "now"_a, "batches"_a, "labels"_a = 256,
        "The plan of the most utility, with the answer of tokens_printed. Options may differ in number and deadline.");
  m.def("tokens_batch", &batch, "queries"_a, "delta"_a, "most"_a, "eta"_a, "mu"_a,
        "OTAS, Algorithm 1: the numbers of the queries in each batch. `queries` by arrival: (arrival, deadline,\n"
        "utility), times in ns.");
  nb::class_<solve::tokens::TokenCounts>(
      m, "TokenCounts",
      "Variants of one network at several token counts, by which rules one of them gets "
      "a batch, and how accurate each\n"
      "is for each kind of rows (src/solve/tokens/chooser.h). Times in ns.")
      .def("__init__", &make_counts, "variants"_a, "accuracy"_a, nb::kw_only(), "policy"_a = "price", "fixed"_a = 0,
           "delta"_a, "most"_a, "eta"_a, "mu"_a, "beta"_a = 5, "initial"_a = 2'000'000'000, "kappa"_a = 0.8, "window"_a,
           "horizon"_a, "share"_a = 1.0, "looked_at"_a = 32, "energy"_a = std::vector<double>{});
}

}  // namespace arlo::simulate
