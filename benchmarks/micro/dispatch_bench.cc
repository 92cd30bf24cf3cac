// Time of the dispatch core at a steady load: one arrival and one finish at a time, so that every heap really moves.
//
// The setting follows section 5.1.4 of the paper: 12 runtimes, 200 to 1,200 instances, two concurrent requests for each
// instance, L levels examined. Lengths are log-normal, like those of tweets; the finished request is drawn at random.
// Random numbers are drawn beforehand, so only the scheduler is timed.
//
// Reported, all for a single thread:
//   ns_pair       median over the repetitions' slices of one arrive + one finish
//   ns_decision   median of arrive alone, heap update included (slices of arrivals only)
//   demoted       share of requests that started above their ideal level: quality, in addition to time
//
// `pair` keeps two requests outstanding per instance throughout. With `capacity` 0 an instance's M is what it does in
// an SLO of 150 ms.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "dispatch/scheduler.h"

namespace {

using arlo::dispatch::Action;
using arlo::dispatch::Actions;
using arlo::dispatch::Options;
using arlo::dispatch::Policy;
using arlo::dispatch::RequestHandle;
using arlo::dispatch::RuntimeSpec;
using arlo::dispatch::Scheduler;
using arlo::dispatch::TimeNs;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kLevels = 12;
constexpr std::int32_t kStep = 64;       // tokens between levels
constexpr std::size_t kDraws = 1 << 16;  // random numbers, used in turn

struct Draws {
  std::vector<std::int32_t> length;  // tokens
  std::vector<std::uint32_t> victim;

  Draws() {
    std::mt19937_64 random(20240812);
    std::lognormal_distribution<double> tokens(std::log(250.0), 0.6);
    for (std::size_t i = 0; i < kDraws; ++i) {
      const auto drawn = static_cast<std::int32_t>(std::lround(tokens(random)));
      length.push_back(std::clamp(drawn, 1, kLevels * kStep));
      victim.push_back(static_cast<std::uint32_t>(random()));
    }
  }
};

const Draws& draws() {
  static const Draws all;
  return all;
}

// Instances per level, proportional to the work of its lengths; at least one.
std::vector<int> allocation(int instances, int levels) {
  const auto width = static_cast<std::int32_t>(kLevels * kStep / levels);
  std::vector<double> work(static_cast<std::size_t>(levels), 0.0);
  for (const std::int32_t length : draws().length) {
    const auto level = static_cast<std::size_t>((length - 1) / width);
    work[level] += static_cast<double>(level + 1);
  }
  double total = 0;
  for (const double w : work) total += w;
  std::vector<int> count;
  int left = instances;
  for (std::size_t l = 0; l + 1 < work.size(); ++l) {
    count.push_back(std::max(1, static_cast<int>(work[l] / total * instances)));
    left -= count.back();
  }
  count.push_back(std::max(1, left));
  return count;
}

Scheduler make(Policy policy, int instances, int max_peek, int capacity) {
  Scheduler scheduler(Options{.policy = policy, .max_peek = max_peek, .max_queued = 1 << 24});
  Actions out;
  const int levels = policy == Policy::kUniform ? 1 : kLevels;
  const std::vector<int> count = allocation(instances, levels);
  for (int level = 0; level < levels; ++level) {
    const std::int32_t length = kLevels * kStep / levels * (level + 1);
    const TimeNs latency = 1'000'000 + length * 8'000;  // 1.1 ms at 64 tokens to 7 ms at 768
    const auto runtime = scheduler.add_runtime(
        RuntimeSpec{.max_length = length,
                    .capacity = capacity > 0 ? capacity : static_cast<std::int32_t>(150'000'000 / latency),
                    .latency = {{length, 1, latency}}});
    for (int i = 0; i < count[static_cast<std::size_t>(level)]; ++i) scheduler.join(runtime, 1, 0, out);
  }
  return scheduler;
}

// A steady load of two requests for each instance; each step is one arrival and one finish.
class Load {
 public:
  Load(Policy policy, const benchmark::State& state)
      : scheduler_(make(policy, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
                        static_cast<int>(state.range(2)))) {
    const auto instances = static_cast<int>(state.range(0));
    running_.reserve(static_cast<std::size_t>(instances));
    out_.reserve(1024);
    for (int i = 0; i < 2 * instances; ++i) arrive();
    for (int i = 0; i < 50 * instances; ++i) {
      arrive();
      finish();
    }
    started_ = demoted_ = 0;
  }

  void arrive() {
    now_ += 2'000;
    scheduler_.arrive(next_, {.length = draws().length[next_ % kDraws]}, now_, out_);
    ++next_;
    take();
  }

  void finish() {
    const std::size_t at = draws().victim[next_ % kDraws] % running_.size();
    const RequestHandle handle = running_[at];
    running_[at] = running_.back();
    running_.pop_back();
    scheduler_.finish(handle, arlo::dispatch::Verdict::kAnswered, now_, out_);
    take();
  }

  [[nodiscard]] double demoted() const { return static_cast<double>(demoted_) / static_cast<double>(started_); }
  [[nodiscard]] double queued() const { return scheduler_.queued(); }

 private:
  void take() {
    for (const Action& action : out_) {
      if (action.kind != arlo::dispatch::ActionKind::kStart) continue;
      running_.push_back(action.handle);
      ++started_;
      demoted_ += action.demoted ? 1 : 0;
    }
    out_.clear();
  }

  Scheduler scheduler_;
  Actions out_;
  std::vector<RequestHandle> running_;
  TimeNs now_ = 0;
  std::uint64_t next_ = 0;
  std::int64_t started_ = 0;
  std::int64_t demoted_ = 0;
};

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double ns_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

constexpr int kSlice = 256;  // calls between two looks at the clock

void pair(benchmark::State& state, Policy policy) {
  Load load(policy, state);
  std::vector<double> pairs;
  while (state.KeepRunning()) {
    const auto begin = Clock::now();
    for (int i = 0; i < kSlice; ++i) {
      load.arrive();
      load.finish();
    }
    const double ns = ns_since(begin);
    pairs.push_back(ns / kSlice);
    state.SetIterationTime(ns * 1e-9);
  }
  state.SetItemsProcessed(state.iterations() * kSlice);
  state.counters["ns_pair"] = median(pairs);
  state.counters["demoted"] = load.demoted();
  state.counters["queued"] = load.queued();
}

// A slice of arrivals, then as many finishes: the load swings by a slice around two for each instance.
void decision(benchmark::State& state, Policy policy) {
  Load load(policy, state);
  std::vector<double> arrivals;
  std::vector<double> finishes;
  while (state.KeepRunning()) {
    const auto begin = Clock::now();
    for (int i = 0; i < kSlice; ++i) load.arrive();
    const double ns = ns_since(begin);
    const auto middle = Clock::now();
    for (int i = 0; i < kSlice; ++i) load.finish();
    finishes.push_back(ns_since(middle) / kSlice);
    arrivals.push_back(ns / kSlice);
    state.SetIterationTime(ns * 1e-9);
  }
  state.SetItemsProcessed(state.iterations() * kSlice);
  state.counters["ns_decision"] = median(arrivals);
  state.counters["ns_finish"] = median(finishes);
  state.counters["demoted"] = load.demoted();
}

void common(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"instances", "peek", "capacity"})->UseManualTime()->MinTime(0.2);
}

int register_all() {
  for (const Policy policy :
       {Policy::kRs, Policy::kIlb, Policy::kIg, Policy::kInfaas, Policy::kUniform, Policy::kEft, Policy::kLate}) {
    const std::string name(arlo::dispatch::policy_name(policy));
    common(benchmark::RegisterBenchmark((name + "/pair").c_str(), pair, policy)->Args({1200, 6, 0}));
    common(benchmark::RegisterBenchmark((name + "/decision").c_str(), decision, policy)->Args({1200, 6, 0}));
  }
  return 0;
}

[[maybe_unused]] const int registered = register_all();

}  // namespace

BENCHMARK_MAIN();
