// Cost of a pipeline's core: a visit's decision in addition to the scheduler's, a router's tables and prices, and stage
// rows through the simulator.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/pipeline/pipeline.h"
#include "simulate/engine.h"

namespace arlo::flow::pipeline {
namespace {

// `stages` in a chain, of so many variants each, one child for each row.
Spec chain(std::int32_t stages, std::int32_t variants, Router router) {
  Spec spec;
  spec.router = router;
  std::uint16_t id = 0;
  for (std::int32_t s = 0; s < stages; ++s) {
    spec.stages.emplace_back();
    for (std::int32_t v = 0; v < variants; ++v) {
      const TimeNs time = (1 + v) * kMs;
      spec.stages.back().variants.push_back(
          {id++, .7 + .3 * (v + 1) / variants, time, static_cast<double>(time) / 1e9});
    }
    if (s > 0) spec.edges.push_back({s - 1, s, std::vector<double>(static_cast<std::size_t>(variants), 1.0), 0});
  }
  return spec;
}

struct System {
  explicit System(const Spec& spec) : scheduler({.policy = dispatch::Policy::kLate, .max_queued = 1 << 20}) {
    for (const StageSpec& stage : spec.stages) {
      for (const VariantSpec& v : stage.variants) {
        const auto runtime = scheduler.add_runtime(
            {.max_length = 64, .max_batch = 1, .capacity = 100, .latency = {{64, 1, v.least}}, .variant = v.id});
        for (int i = 0; i < 4; ++i) scheduler.join(runtime, 1, 0, out);
      }
    }
  }
  dispatch::Scheduler scheduler;
  dispatch::Actions out;
};

// A row's visits of its stages, the scheduler's part included; `core`: with the pipeline, or a chain of the scheduler's
// own arrivals.
void visits(benchmark::State& state, bool core) {
  const auto stages = static_cast<std::int32_t>(state.range(0));
  const auto variants = static_cast<std::int32_t>(state.range(1));
  const Spec spec = chain(stages, variants, Router::kPrice);
  System system(spec);
  Pipeline pipeline(spec, system.scheduler);
  TimeNs now = 0;
  std::vector<Children> one(1);
  for (auto _ : state) {
    now += kMs / 10;
    if (core) {
      pipeline.arrive({.length = 10, .due = now + 100 * kMs, .deadline = now + 100 * kMs}, now);
      for (Step step; pipeline.next(now, step);) {
        if (step.kind != Step::Kind::kEnter) continue;
        const auto admitted = system.scheduler.arrive(step.tag,
                                                      {.length = step.length,
                                                       .due = step.due,
                                                       .deadline = step.deadline,
                                                       .variant = step.variant,
                                                       .follows = step.follows},
                                                      now, system.out);
        system.scheduler.finish(admitted.handle, dispatch::Verdict::kAnswered, now, system.out);
        one[0].edge = step.stage;
        const bool last = step.stage + 1 == stages;
        pipeline.finish(step.visit, last ? std::span<const Children>{} : std::span<const Children>(one), now);
      }
    } else {
      for (std::int32_t s = 0; s < stages; ++s) {
        const auto variant = static_cast<dispatch::VariantId>(s * variants);
        const auto admitted = system.scheduler.arrive(
            0, {.length = 10, .due = now + 100 * kMs, .deadline = now + 100 * kMs, .variant = variant}, now,
            system.out);
        system.scheduler.finish(admitted.handle, dispatch::Verdict::kAnswered, now, system.out);
      }
    }
    system.out.clear();
  }
  state.SetItemsProcessed(state.iterations() * stages);
}
BENCHMARK_CAPTURE(visits, scheduler_alone, false)->Args({1, 1})->Args({3, 8});
BENCHMARK_CAPTURE(visits, pipeline, true)->Args({1, 1})->Args({2, 1})->Args({2, 5})->Args({3, 8});

// A router's tables for so many pools in three stages.
void tables(benchmark::State& state, bool maf) {
  const auto pools = static_cast<std::int32_t>(state.range(0));
  Spec spec;
  for (std::int32_t s = 0; s < 3; ++s) {
    spec.stages.emplace_back();
    const std::int32_t count = s == 0 ? 4 : (pools - 4) / 2;  // a detector, and two kinds of what it finds
    for (std::int32_t v = 0; v < count; ++v) {
      spec.stages.back().variants.push_back({0, 1 - .003 * v, kMs, .001});
    }
  }
  spec.edges = {{0, 1, {4, 5, 6, 7}, 0}, {0, 2, {1, 2, 3, 4}, 0}};
  const Tree tree(spec);
  Shares shares(tree);
  Plan plan;
  plan.demand = 1000;
  plan.share.assign(tree.nodes(), 1);
  const std::vector<double> capacity(static_cast<std::size_t>(tree.variants()), 100);
  for (auto _ : state) {
    if (maf) {
      shares.by_accuracy(plan, capacity);
    } else {
      shares.by_plan(plan, capacity);
    }
    benchmark::DoNotOptimize(shares.part(0));
  }
}
BENCHMARK_CAPTURE(tables, maf, true)->Arg(200);
BENCHMARK_CAPTURE(tables, plan, false)->Arg(200);

void prices(benchmark::State& state) {
  const Spec spec = chain(3, 8, Router::kPrice);
  const Tree tree(spec);
  Values values(tree);
  std::vector<double> price(static_cast<std::size_t>(tree.variants()), 1);
  for (auto _ : state) {
    values.update(price);
    benchmark::DoNotOptimize(values.of(0, 1));
  }
}
BENCHMARK(prices);

// Stage rows of a two-stage flow through the simulator, at a load of four fifths.
void simulated(benchmark::State& state) {
  const auto router = static_cast<Router>(state.range(0));
  const Spec spec = chain(2, 3, router);
  std::int64_t rows = 0;
  for (auto _ : state) {
    simulate::Options options;
    options.dispatch = {
        .policy = dispatch::Policy::kLate, .max_queued = 1 << 20, .batching = dispatch::Batching::kFill};
    options.slo = 100 * kMs;
    simulate::Engine engine(options);
    for (const StageSpec& stage : spec.stages) {
      for (const VariantSpec& v : stage.variants) {
        const auto runtime = engine.add_runtime({.spec = {.max_length = 64,
                                                          .max_batch = 8,
                                                          .capacity = 100,
                                                          .latency = {{64, 1, v.least}, {64, 8, 4 * v.least}},
                                                          .variant = v.id},
                                                 .inflight_limit = 1,
                                                 .truth = {}});
        for (int i = 0; i < 5; ++i) engine.add_worker(runtime, 0);
      }
    }
    simulate::Pipeline pipeline;
    pipeline.spec = spec;
    pipeline.edges = {
        {.kind = simulate::Pipeline::Children::kConstant, .take = {1, 1, 1}, .mean = {2, 2, 2}, .counts = {}}};
    pipeline.deadline = options.slo;
    engine.set_pipeline(pipeline);
    Plan plan;
    plan.demand = 4000;
    plan.share.assign(Tree(spec).nodes(), 1);
    engine.plan(plan);
    std::mt19937_64 random(1);
    std::exponential_distribution<double> gap(4000.0 / 1e9);
    std::vector<TimeNs> arrived;
    double at = 0;
    for (int i = 0; i < 200'000; ++i) arrived.push_back(static_cast<TimeNs>(at += gap(random)));
    engine.feed(arrived, std::vector<std::int32_t>(arrived.size(), 10));
    engine.finish();
    rows += static_cast<std::int64_t>(engine.accounts().all.totals.rows);
  }
  state.SetItemsProcessed(rows);
}
BENCHMARK(simulated)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace arlo::flow::pipeline

BENCHMARK_MAIN();
