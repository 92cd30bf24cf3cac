// Pipelines in Python: their spec and plans as the simulator takes them, and the tables of a router.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "flow/pipeline/pipeline.h"
#include "simulate/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace arlo::flow::pipeline {
namespace {

using VariantOf = std::tuple<std::uint16_t, double, TimeNs, double>;                 // id, accuracy, least, work
using EdgeOf = std::tuple<std::int32_t, std::int32_t, std::vector<double>, TimeNs>;  // from, to, factor, hop
using CurveOf = std::vector<std::pair<double, double>>;
// edge or -1, threshold (fixed | price | planned), at_least, below, gain by variant, labels
using GuardOf = std::tuple<std::int32_t, std::string, double, double, std::vector<CurveOf>, std::vector<std::uint32_t>>;
using StageOf = std::tuple<std::vector<GuardOf>, bool, std::vector<float>, std::vector<std::int32_t>>;
using RowsOf = std::tuple<std::size_t, std::vector<std::uint8_t>, std::vector<StageOf>>;
using DrawOf =
    std::tuple<std::string, std::vector<double>, std::vector<double>, std::vector<std::int32_t>, std::int32_t,
               std::vector<std::pair<std::int32_t, double>>>;  // kind, take, mean, counts, max, lengths

void make_spec(Spec* self, const std::vector<std::vector<VariantOf>>& stages, const std::vector<EdgeOf>& edges,
               const std::vector<double>& accuracy, const std::string& router, const std::string& drop,
               const std::string& on_drop, std::int32_t max_open, const std::vector<std::int32_t>& falls_back,
               bool follows_load, const std::vector<double>& energy,
               const std::vector<std::pair<std::int32_t, std::int32_t>>& joins) {
  Spec made;
  std::size_t number = 0;
  for (const auto& variants : stages) {
    auto& stage = made.stages.emplace_back();
    for (const auto& [id, accurate, least, work] : variants) {
      stage.variants.push_back({id, accurate, least, work, energy.empty() ? 0 : energy.at(number)});
      ++number;
    }
  }
  for (const auto& [from, to, factor, hop] : edges) made.edges.push_back({from, to, factor, hop});
  if (!energy.empty() && energy.size() != number) throw std::invalid_argument("energy: one for each variant, or none");
  made.accuracy = accuracy;
  made.router = named<Router>(router, {"price", "plan", "maf"});
  made.drop = named<Drop>(drop, {"none", "last", "per_task", "reroute", "slack"});
  made.on_drop = named<OnDrop>(on_drop, {"fail", "partial"});
  made.max_open = max_open;
  for (const std::int32_t e : falls_back) made.edges.at(static_cast<std::size_t>(e)).falls_back = true;
  for (const auto& [e, fork] : joins) made.edges.at(static_cast<std::size_t>(e)).join = fork;
  made.follows_load = follows_load;
  validate(made);
  new (self) Spec(std::move(made));
}

// Arguments in the form that the simulator takes.
simulate::Pipeline::Rows rows_of(const RowsOf& from) {
  simulate::Pipeline::Rows to;
  std::vector<StageOf> stages;
  std::tie(to.count, to.right, stages) = from;
  for (const auto& [guards, first, scores, labels] : stages) {
    auto& stage = to.stages.emplace_back();
    stage.first = first;
    stage.scores = scores;
    stage.labels = labels;
    for (const auto& [edge, threshold, at_least, below, gain, of] : guards) {
      stage.guards.push_back({.edge = edge,
                              .rule = named<Guard::Rule>(threshold, {"fixed", "soft", "price", "planned"}),
                              .at_least = at_least,
                              .below = below > 0 ? ByLength{{0, below}} : ByLength{},
                              .gain = gain,
                              .labels = of});
    }
  }
  return to;
}

std::vector<double> table(const Spec& of, const Plan& plan, const std::vector<double>& capacity) {
  validate(plan, of);
  const Tree tree(of);
  if (capacity.size() != static_cast<std::size_t>(tree.variants())) {
    throw std::invalid_argument("capacity: one for each variant");
  }
  Shares shares(tree);
  if (of.router == Router::kMaf) {
    shares.by_accuracy(plan, capacity);
  } else {
    shares.by_plan(plan, capacity);
  }
  std::vector<double> parts;
  parts.reserve(tree.nodes());
  for (Node node = 0; node < tree.nodes(); ++node) parts.push_back(shares.part(node));
  return parts;
}

}  // namespace

void bind(nb::module_& m) {
  nb::class_<Spec>(m, "Pipeline", "A pipeline as data: src/flow/pipeline/spec.h.")
      .def("__init__", &make_spec, "stages"_a, "edges"_a, nb::kw_only(), "accuracy"_a = std::vector<double>{},
           "router"_a = "price", "drop"_a = "slack", "on_drop"_a = "fail", "max_open"_a = 1 << 16,
           "falls_back"_a = std::vector<std::int32_t>{}, "follows_load"_a = false, "energy"_a = std::vector<double>{},
           "joins"_a = std::vector<std::pair<std::int32_t, std::int32_t>>{},
           "`stages`: of each, parents first, variants (id, accuracy, least ns, worker-seconds of a row). `edges`: "
           "(from,\n"
           "to, factor by variant, hop ns). `accuracy`: of each prefix, stage by stage; empty: products.\n"
           "`falls_back`: edges whose head answers in its place; `follows_load`: some exit depends on the price;\n"
           "`energy`: utility of a worker-second of each variant beyond its price, stage by stage; empty: none;\n"
           "`joins`: (edge, stage) of edges that join what comes of one row of that stage.");
  nb::class_<Plan>(m, "PipelinePlan", "What a planner says of a pipeline: src/flow/pipeline/spec.h.")
      .def(
          "__init__",
          [](Plan* self, double demand, double price, const std::vector<double>& share,
             const std::vector<std::uint8_t>& feasible, const std::vector<double>& rate,
             const std::vector<TimeNs>& budget, const std::vector<TimeNs>& time) {
            new (self) Plan{0, demand, price, share, feasible, rate, budget, time};
          },
          nb::kw_only(), "demand"_a, "price"_a = 0.0, "share"_a = std::vector<double>{},
          "feasible"_a = std::vector<std::uint8_t>{}, "rate"_a = std::vector<double>{},
          "budget"_a = std::vector<TimeNs>{}, "time"_a = std::vector<TimeNs>{},
          "`share`, `feasible`: of each prefix, stage by stage; `rate` (rows/s of an instance), `budget`, `time` (ns): "
          "of\n"
          "each variant.");
  m.def("pipeline_table", &table, "pipeline"_a, "plan"_a, "capacity"_a,
        "Part of each prefix within its block, by the pipeline's router; `capacity`: rows/s of each variant's pool.");
}

}  // namespace arlo::flow::pipeline

namespace arlo::simulate {

void bind_pipeline(nb::class_<Engine>& engine) {
  using flow::pipeline::DrawOf;
  engine
      .def(
          "set_pipeline",
          [](Engine& e, const flow::pipeline::Spec& spec, const std::vector<DrawOf>& edges,
             const std::vector<std::vector<double>>& exits, std::optional<TimeNs> deadline,
             const std::optional<flow::pipeline::RowsOf>& rows) {
            Pipeline made;
            if (rows) made.rows = flow::pipeline::rows_of(*rows);
            made.spec = spec;
            for (const auto& [kind, take, mean, counts, max, lengths] : edges) {
              made.edges.push_back(
                  {named<Pipeline::Children>(kind, {"constant", "ceil", "poisson", "empirical", "trace"}), take, mean,
                   counts, max, lengths});
            }
            made.exits = exits;
            made.deadline = deadline.value_or(kNever);
            e.set_pipeline(std::move(made));
          },
          "pipeline"_a, "edges"_a, nb::kw_only(), "exits"_a = std::vector<std::vector<double>>{},
          "deadline"_a = nb::none(), "rows"_a = nb::none(),
          "Every request is a root of this pipeline. `edges`: what each makes of a row: (constant | ceil | poisson |\n"
          "empirical | trace, share that takes it by variant, mean children by variant, counts, most, (tokens, share) "
          "of\n"
          "its rows: none, as the parent has). `exits`:\n"
          "share of the rows of [stage][variant] that end there. `deadline`: ns from a root's arrival.\n"
          "`rows`: recorded ones, of which each root is one: (count, right [prefixes, rows], of each stage (guards, "
          "first,\n"
          "scores [guards, variants, rows])); a guard: (edge or -1, fixed | price | planned, at_least, below, gain by\n"
          "variant: points (score, gain)). A stage without guards goes by shares.")
      .def("plan", &Engine::plan, "plan"_a, "A plan for the pipeline, in force from now on.")
      .def(
          "pipeline_totals",
          [](const Engine& e) {
            const PipelineTotals* t = e.pipeline();
            if (t == nullptr) throw std::invalid_argument("there is no pipeline");
            nb::dict d;
            d["roots"] = t->roots;
            d["on_time"] = t->on_time;
            d["late"] = t->late;
            d["failed"] = t->failed;
            d["partial"] = t->partial;
            d["accuracy_sum"] = t->accuracy_sum;
            d["on_time_accuracy_sum"] = t->on_time_accuracy_sum;
            d["leaves_on_time"] = t->leaves_on_time;
            d["leaves_late"] = t->leaves_late;
            d["leaf_accuracy_sum"] = t->leaf_accuracy_sum;
            d["rerouted"] = t->rerouted;
            d["fell_back"] = t->fell_back;
            nb::dict dropped;
            for (std::size_t i = 0; i < flow::pipeline::kDropReasons; ++i) {
              const auto name = flow::pipeline::drop_reason_name(static_cast<flow::pipeline::DropReason>(i));
              dropped[nb::str(name.data(), name.size())] = t->dropped[i];
            }
            d["dropped"] = dropped;
            d["visits"] = nb::cast(t->visits);
            nb::list made;
            for (const auto& each : t->made) made.append(nb::make_tuple(each.answered, each.ended, each.children));
            d["made"] = made;
            return d;
          },
          nb::sig("def pipeline_totals(self) -> dict[str, typing.Any]"),
          "Sums over the roots that arrived after the warm-up, and over their visits. `made`: of all roots, by "
          "variant,\n"
          "visits answered, of these without children, and children by edge.");
}

}  // namespace arlo::simulate
