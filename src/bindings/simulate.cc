// The simulator's event loop in Python. Columns cross as NumPy arrays; advance() and finish() release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "simulate/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace arlo::simulate {
namespace {

using Points = std::vector<std::tuple<std::int32_t, std::int32_t, TimeNs>>;

const Accounts::Sums& sums(const Engine& engine, std::optional<dispatch::VariantId> variant) {
  return variant ? engine.accounts().of(*variant) : engine.accounts().all;
}

nb::dict totals(const Engine& engine, std::optional<dispatch::VariantId> variant) {
  const Totals& t = sums(engine, variant).totals;
  nb::dict d;
  d["arrived"] = t.arrived;
  d["on_time"] = t.outcomes[static_cast<int>(Outcome::kOnTime)];
  d["late"] = t.outcomes[static_cast<int>(Outcome::kLate)];
  d["rejected"] = t.outcomes[static_cast<int>(Outcome::kRejected)];
  d["expired"] = t.outcomes[static_cast<int>(Outcome::kExpired)];
  d["failed"] = t.outcomes[static_cast<int>(Outcome::kFailed)];
  d["demoted"] = t.demoted;
  d["retried"] = t.retried;
  d["tokens"] = t.tokens;
  d["padded_tokens"] = t.padded_tokens;
  d["batches"] = t.batches;
  d["rows"] = t.rows;
  d["latency_sum_ns"] = t.latency_sum_ns;
  d["wait_sum_ns"] = t.wait_sum_ns;
  d["execute_sum_ns"] = t.execute_sum_ns;
  d["latency_max_ns"] = t.latency_max;
  d["bulk_arrived"] = t.bulk_arrived;
  d["bulk_answered"] = t.bulk_answered;
  d["bulk_latency_sum_ns"] = t.bulk_latency_sum_ns;
  return d;
}

nb::dict workers(const Engine& engine) {
  std::vector<WorkerView> all;
  for (WorkerId id = 0; id < engine.workers(); ++id) all.push_back(engine.worker(id));
  nb::dict d;
  d["runtime"] = column<std::int64_t>(all, &WorkerView::runtime);
  d["state"] = column<std::int64_t>(all, &WorkerView::state);
  d["waiting"] = column<std::int64_t>(all, &WorkerView::waiting);
  d["executing"] = column<std::int64_t>(all, &WorkerView::executing);
  d["since_ns"] = column<std::int64_t>(all, &WorkerView::since);
  d["busy_ns"] = column<std::int64_t>(all, &WorkerView::busy);
  d["served"] = column<std::int64_t>(all, &WorkerView::served);
  return d;
}

nb::dict runtimes(const Engine& engine) {
  std::vector<RuntimeView> all;
  for (RuntimeId id = 0; id < engine.runtimes(); ++id) all.push_back(engine.runtime(id));
  nb::dict d;
  d["served"] = column<std::int64_t>(all, &RuntimeView::served);
  d["demoted"] = column<std::int64_t>(all, &RuntimeView::demoted);
  d["batches"] = column<std::int64_t>(all, &RuntimeView::batches);
  d["busy_ns"] = column<std::int64_t>(all, &RuntimeView::busy);
  return d;
}

nb::dict columns(const Engine& engine) {
  const std::vector<Record>& rows = engine.accounts().records;
  nb::dict d;
  d["arrived_ns"] = column<TimeNs>(rows, &Record::arrived);
  d["length"] = column<std::int32_t>(rows, &Record::length);
  d["variant"] = column<std::uint8_t>(rows, &Record::variant);
  d["latency_ns"] = column<TimeNs>(rows, &Record::latency);
  d["wait_ns"] = column<TimeNs>(rows, &Record::wait);
  d["worker"] = column<std::int32_t>(rows, &Record::worker);
  d["runtime"] = column<std::int16_t>(rows, &Record::runtime);
  d["outcome"] = column<std::uint8_t>(rows, &Record::outcome);
  if (engine.pipeline() != nullptr) d["accuracy"] = column<float>(rows, &Record::accuracy);
  if (engine.cascade() != nullptr) d["stage"] = column<std::int8_t>(rows, &Record::stage);
  if (engine.cascade() != nullptr || engine.pipeline() != nullptr) {
    d["reason"] = column<std::int8_t>(rows, &Record::reason);
  }
  return d;
}

nb::tuple take_recent(Engine& engine) {
  Recent recent = engine.take_recent();
  nb::dict d;
  d["arrived"] = recent.arrived;
  d["answered"] = recent.answered;
  d["on_time"] = recent.on_time;
  d["unanswered"] = recent.unanswered;
  d["latency_sum_ns"] = recent.latency_sum_ns;
  return nb::make_tuple(d, array(std::move(recent.latencies)));
}

// Least values of the first buckets.
template <typename Buckets>
Output<TimeNs> edges(std::size_t n) {
  std::vector<TimeNs> lower;
  for (std::size_t i = 0; i < n; ++i) lower.push_back(Buckets::lower(i));
  return array(std::move(lower));
}

nb::tuple histogram(const Engine& engine) {
  const auto& counts = engine.accounts().all.latency.counts();
  return nb::make_tuple(edges<Histogram::Bucket>(counts.size()), array(counts));
}

Output<double> quantiles(const Engine& engine, const Input<double>& q, std::optional<dispatch::VariantId> variant) {
  std::vector<double> values;
  for (const double at : view(q)) values.push_back(sums(engine, variant).latency.quantile(at));
  return array(std::move(values));
}

}  // namespace

void bind(nb::module_& m) {
  const dispatch::Options defaults;
  nb::class_<Engine> engine(
      m, "Simulation",
      "The simulator's event loop: the scheduler of this module, workers that execute, and arrivals.\n\n"
      "All times are integers in ns from the start. Between calls of advance() the caller plans: it adds, replaces "
      "and\n"
      "removes workers. Outcomes, the order of events at equal times and what a latency consists of stand in\n"
      "src/simulate/engine.h. Not thread-safe. ValueError for values out of range and for unknown ids.");
  engine.def(
      "__init__",
      [](Engine* self, std::string_view policy, TimeNs slo, double lambda, double alpha, std::int32_t max_peek,
         std::int32_t max_queued, std::optional<TimeNs> timeout, TimeNs overhead, TimeNs hop_out, TimeNs hop_back,
         std::int32_t retries, std::uint64_t seed, TimeNs warmup, bool record, std::string_view batching,
         double bulk_share, const std::optional<Input<double>>& noise) {
        Options options{.dispatch = {dispatch::parse_policy(policy), lambda, alpha, max_peek, max_queued,
                                     dispatch::parse_batching(batching)},
                        .slo = slo,
                        .timeout = timeout.value_or(kNever),
                        .overhead = overhead,
                        .hop_out = hop_out,
                        .hop_back = hop_back,
                        .retries = retries,
                        .seed = seed,
                        .warmup = warmup,
                        .record = record,
                        .bulk_share = bulk_share,
                        .noise = {}};
        if (noise) options.noise.assign(view(*noise).begin(), view(*noise).end());
        new (self) Engine(options);
      },
      "policy"_a = "rs", nb::kw_only(), "slo"_a, "lambda_"_a = defaults.lambda, "alpha"_a = defaults.alpha,
      "max_peek"_a = defaults.max_peek, "max_queued"_a = defaults.max_queued, "timeout"_a = nb::none(),
      "overhead"_a = 0, "hop_out"_a = 0, "hop_back"_a = 0, "retries"_a = 2, "seed"_a = 0, "warmup"_a = 0,
      "record"_a = false, "batching"_a = "one", "bulk_share"_a = 0.0, "noise"_a = nb::none(),
      "`noise`: float64 quantiles, evenly spaced, of the factor on each execution time.");
  engine
      .def(
          "add_runtime",
          [](Engine& e, std::int32_t max_length, std::int32_t capacity, const Points& latency, std::int32_t max_batch,
             bool dynamic, std::int32_t inflight_limit, const std::optional<Points>& truth,
             dispatch::VariantId variant) {
            RuntimeOptions runtime{
                {max_length, max_batch, capacity, dynamic, points(latency), variant}, inflight_limit, {}};
            if (truth) runtime.truth = points(*truth);
            return e.add_runtime(runtime);
          },
          "max_length"_a, "capacity"_a, "latency"_a, nb::kw_only(), "max_batch"_a = 1, "dynamic"_a = false,
          "inflight_limit"_a = 1, "truth"_a = nb::none(), "variant"_a = 0,
          "A runtime, as Scheduler.add_runtime; returns its id. `truth`: what execution takes, where it is not what\n"
          "the scheduler believes.")
      .def("add_bundle", &Engine::add_bundle, "runtimes"_a, nb::kw_only(), "inflight_limit"_a = 1,
           "Runtimes that a worker holds together, `inflight_limit` batches at a time; its id stands where a runtime's "
           "does.")
      .def(
          "set_variant",
          [](Engine& e, dispatch::VariantId variant, TimeNs slo, std::optional<TimeNs> timeout, double share) {
            e.set_variant(variant, slo, timeout.value_or(kNever), share);
          },
          "variant"_a, nb::kw_only(), "slo"_a, "timeout"_a = nb::none(), "share"_a = 1.0,
          "The time limits of the requests of a variant, and its share of the workers; before the first request.")
      .def(
          "set_tokens",
          [](Engine& e, const solve::tokens::TokenCounts& counts,
             const std::vector<std::pair<double, std::uint32_t>>& queries, const std::vector<std::int32_t>& bins) {
            TokenQueries tokens{counts, {}, bins};
            for (const auto& [utility, kind] : queries) tokens.queries.push_back({utility, kind});
            e.set_tokens(std::move(tokens));
          },
          "counts"_a, "queries"_a, "bins"_a = std::vector<std::int32_t>{},
          "Every request is one of `queries`, (utility, kind of accuracy), which its variant names; before the first.\n"
          "bins: ends of length bins in tokens, ascending, the last open above: a row of bin b is of kind + b.")
      .def(
          "set_cascade",
          [](Engine& e, const std::vector<dispatch::VariantId>& variants, const flow::Rules& rules,
             const Input<double>& confidence, const std::optional<Input<std::int32_t>>& tokens, std::uint64_t seed,
             TimeNs margin, bool auto_price) {
            Cascade cascade;
            cascade.variants = variants;
            cascade.rules = rules;
            cascade.seed = seed;
            cascade.rows = variants.empty() ? 0 : view(confidence).size() / variants.size();
            cascade.confidence.assign(view(confidence).begin(), view(confidence).end());
            if (tokens) cascade.tokens.assign(view(*tokens).begin(), view(*tokens).end());
            cascade.margin = margin;
            cascade.auto_price = auto_price;
            e.set_cascade(std::move(cascade));
          },
          "variants"_a, "rules"_a, "confidence"_a, nb::kw_only(), "tokens"_a = nb::none(), "seed"_a = 0, "margin"_a = 0,
          "auto_price"_a = false,
          "Every request is a row of a cascade, before the first one: row n says what entry n modulo rows of\n"
          "`confidence` (float64 [rows * stages], by row) says, and is sent to a stage with the tokens of `tokens`\n"
          "(int32 [rows * stages]; None, or 0: all of them).")
      .def_prop_ro(
          "price", [](const Engine& e) { return e.cascade() == nullptr ? 0 : e.cascade()->price(); },
          "Of going on, of a cascade.")
      .def("add_worker", &Engine::add_worker, "runtime"_a, "at"_a, "A worker that serves from `at` on; its id.")
      .def("replace", &Engine::replace, "worker"_a, "runtime"_a, "delay"_a,
           "Drains the worker; when it is empty it loads `runtime`, which takes `delay`.")
      .def("remove", &Engine::remove, "worker"_a, "Drains the worker; it is gone when it is empty.")
      .def(
          "fail",
          [](Engine& e, WorkerId worker, std::optional<TimeNs> restart) { e.fail(worker, restart.value_or(kNever)); },
          "worker"_a, "restart"_a = nb::none(),
          "The worker dies, and serves again after `restart`. None: it is gone for good.")
      .def("slow", &Engine::slow, "worker"_a, "factor"_a,
           "Executions that begin from now on take `factor` times as long.")
      .def(
          "feed",
          [](Engine& e, const Input<TimeNs>& arrived, const Input<std::int32_t>& length,
             const std::optional<Input<dispatch::VariantId>>& variant) {
            e.feed(view(arrived), view(length), variant ? view(*variant) : std::span<const dispatch::VariantId>{});
          },
          "arrived"_a, "length"_a, "variant"_a = nb::none(),
          "Requests to come: int64 ns [n], ascending, int32 tokens [n], and uint16 variants [n]; None: all of the "
          "first.")
      .def("advance", &Engine::advance, "until"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Handles everything due before `until`; arrivals must be fed up to there.")
      .def("finish", &Engine::finish, nb::call_guard<nb::gil_scoped_release>(),
           "No more arrivals: handles everything. What cannot be served any more is failed.")
      .def_prop_ro("now", &Engine::now)
      .def_prop_ro("queued", &Engine::queued, "Requests that wait at the scheduler.")
      .def_prop_ro("in_flight", &Engine::in_flight, "Requests that have been started on a worker.")
      .def("totals", &totals, "variant"_a = nb::none(),
           nb::sig("def totals(self, variant: int | None = None) -> dict[str, float]"),
           "Sums over the requests that arrived after the warm-up, or over those of one variant.")
      .def("quantiles_ns", &quantiles, "q"_a, "variant"_a = nb::none(),
           "Latencies at the quantiles float64 [n], exact to 1 part in 1024.")
      .def("histogram", &histogram,
           nb::sig("def histogram(self) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint64]]"),
           "Latencies counted: least ns of each bucket int64 [n], requests uint64 [n].")
      .def("take_recent", &take_recent,
           nb::sig("def take_recent(self) -> tuple[dict[str, float], NDArray[numpy.uint64]]"),
           "What happened since the last call: a dict of counts, and latencies uint64 [n] by recent bucket.")
      .def_static("recent_bucket_ns", &edges<RecentBuckets>, "n"_a, "Least ns of each of the first n recent buckets.")
      .def(
          "arrivals_by_length",
          [](const Engine& e, std::optional<dispatch::VariantId> v) {
            return array(v ? e.arrivals_by_length(*v) : e.arrivals_by_length());
          },
          "variant"_a = nb::none(),
          "Arrivals since the start, int64 [longest + 1], or visits of a variant of a pipeline.")
      .def("workers", &workers, nb::sig("def workers(self) -> dict[str, NDArray[numpy.int64]]"),
           "Columns, one row per worker: int64 arrays.")
      .def("runtimes", &runtimes, nb::sig("def runtimes(self) -> dict[str, NDArray[numpy.int64]]"),
           "Columns, one row per runtime: int64 arrays.")
      .def("columns", &columns, nb::sig("def columns(self) -> dict[str, NDArray[typing.Any]]"),
           "One row per arrival, when recorded. `outcome`: on_time, late, rejected, expired, failed. Of a pipeline\n"
           "`accuracy`: expected, and `reason`: of the first drop; -1: none. Of a cascade "
           "`stage`:\n"
           "whose answer it got, and `reason`: why (flow::Reason); -1: none.");
  bind_pipeline(engine);
}

}  // namespace arlo::simulate
