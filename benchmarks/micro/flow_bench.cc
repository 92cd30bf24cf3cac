// Cost of a cascade's decision: confidence and rule by labels, and the choice of words by tokens.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "flow/cascade/cascade.h"

namespace arlo::flow {
namespace {

void decisions(benchmark::State& state) {
  const auto labels = static_cast<std::size_t>(state.range(0));
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(1024 * labels);
  for (auto& value : logits) value = normal(random);
  CascadeSpec spec;
  spec.stages.resize(3);
  spec.labels = static_cast<std::int32_t>(labels);
  Rules rules;
  const Guard rule{.below = {{64, .7}, {512, .8}}};
  rules.prices = {{rule, rule}};
  std::vector<double> scratch;
  std::size_t row = 0;
  for (auto _ : state) {
    const Signals signals{.logits = {logits.data() + (row % 1024) * labels, labels}, .labels = labels};
    benchmark::DoNotOptimize(decide(spec, rules, 0, signals, {.row = row, .length = 40}, 7, 0, scratch));
    ++row;
  }
}
BENCHMARK(decisions)->Arg(2)->Arg(24)->Arg(1000);

void prunings(benchmark::State& state) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  std::mt19937_64 random(1);
  std::gamma_distribution<float> gamma(1, 1);
  Vocabulary vocabulary;
  vocabulary.word_start.resize(4000);
  for (auto& bits : vocabulary.word_start) bits = static_cast<std::uint8_t>(random());
  vocabulary.special = {0, 101, 102};
  vocabulary.keep = {2003, 2025, 2196};
  std::vector<std::int64_t> ids(tokens);
  std::vector<float> importance(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    ids[i] = static_cast<std::int64_t>(1000 + random() % 29000);
    importance[i] = gamma(random);
  }
  ids.front() = 101;
  ids.back() = 102;
  const PruneSpec spec{.alpha = .8};
  const std::vector<std::int32_t> levels = {64, 128, 192, 256, 320, 384, 448, 512};
  std::vector<std::uint32_t> kept;
  for (auto _ : state) {
    prune(spec, vocabulary, ids, importance, levels, kept);
    benchmark::DoNotOptimize(kept.data());
  }
}
BENCHMARK(prunings)->Arg(128)->Arg(512);

}  // namespace
}  // namespace arlo::flow

BENCHMARK_MAIN();
