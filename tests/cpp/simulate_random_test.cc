// Random simulations of every policy, for the sanitizers and for what must hold in each. The comparison with a plain
// simulation is in tests/property/test_simulate_plain.py.
#include <array>
#include <random>

#include "simulate_fixture.h"

namespace arlo::simulate {
namespace {

using dispatch::Policy;

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}
  std::int32_t operator()(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint32_t>(high - low + 1));
  }

 private:
  std::mt19937 random_;
};

Options some_options(Policy policy, Dice& dice, std::uint32_t seed) {
  Options o = options(policy);
  o.slo = dice(1, 40);
  o.timeout = dice(0, 1) == 0 ? kNever : dice(1, 80);
  o.hop_out = dice(0, 1) * dice(0, 5);
  o.hop_back = dice(0, 1) * dice(0, 5);
  o.overhead = dice(0, 2);
  o.retries = dice(0, 3);
  o.seed = seed;
  o.warmup = dice(0, 1) * 50;
  o.dispatch.max_queued = dice(0, 3) == 0 ? dice(0, 8) : 4096;
  if (dice(0, 1) == 0) o.noise = {0.5, 1.0, 2.0};
  return o;
}

void some_runtime(Engine& engine, Policy policy, Dice& dice) {
  const std::int32_t length = policy == Policy::kUniform ? 64 : 16 << dice(0, 3);
  const std::int32_t batch = dice(0, 1) == 0 ? 1 : dice(2, 5);
  const TimeNs alone = dice(0, 9);
  std::vector<dispatch::LatencyPoint> points = {{length, 1, alone}};
  if (batch > 1) points.push_back({length, batch, alone + dice(0, 20)});
  engine.add_runtime({.spec = {.max_length = length,
                               .max_batch = batch,
                               .capacity = dice(1, 6),
                               .dynamic = dice(0, 2) == 0,
                               .latency = points},
                      .inflight_limit = dice(0, 4) == 0 ? 1000 : dice(1, 6),
                      .truth = {}});
}

// Something that a caller may do.
void act(Engine& engine, Dice& dice) {
  const auto runtime = static_cast<RuntimeId>(dice(0, static_cast<std::int32_t>(engine.runtimes()) - 1));
  if (engine.workers() == 0 || dice(0, 5) == 0) {
    engine.add_worker(runtime, engine.now() + dice(0, 20));
    return;
  }
  const auto worker = static_cast<WorkerId>(dice(0, static_cast<std::int32_t>(engine.workers()) - 1));
  if (engine.worker(worker).state == WorkerState::kGone) return;
  switch (dice(0, 4)) {
    case 0:
      engine.replace(worker, runtime, dice(0, 30));
      break;
    case 1:
      engine.remove(worker);
      break;
    case 2:
      engine.fail(worker, dice(0, 20));
      break;
    case 3:
      engine.fail(worker, kNever);
      break;
    default:
      engine.slow(worker, dice(1, 4));
  }
}

void expect_all_accounted_for(const Engine& engine, TimeNs warmup) {
  const auto& [totals, latency] = engine.accounts().all;
  std::array<std::uint64_t, kOutcomes> seen{};
  std::uint64_t counted = 0;
  for (const Record& record : engine.accounts().records) {
    ASSERT_NE(record.outcome, Outcome::kPending);
    if (record.arrived < warmup) continue;
    ++counted;
    ++seen.at(static_cast<std::size_t>(record.outcome));
  }
  EXPECT_EQ(totals.arrived, counted);
  for (std::size_t k = 0; k < kOutcomes; ++k) EXPECT_EQ(totals.outcomes[k], seen.at(k));
  EXPECT_EQ(latency.count(), seen[0] + seen[1]);
  EXPECT_EQ(engine.queued(), 0);
  EXPECT_EQ(engine.in_flight(), 0);
  TimeNs of_workers = 0;
  TimeNs of_runtimes = 0;
  for (WorkerId id = 0; id < engine.workers(); ++id) of_workers += engine.worker(id).busy;
  for (RuntimeId id = 0; id < engine.runtimes(); ++id) of_runtimes += engine.runtime(id).busy;
  EXPECT_EQ(of_workers, of_runtimes);
}

class SimulateRandom : public testing::TestWithParam<Policy> {};

TEST_P(SimulateRandom, EveryArrivalEndsOnce) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const Options o = some_options(GetParam(), dice, seed);
    Engine engine(o);
    for (int i = dice(1, 4); i > 0; --i) some_runtime(engine, GetParam(), dice);
    for (int i = dice(0, 8); i > 0; --i) engine.add_worker(0, 0);
    for (int round = dice(1, 20); round > 0; --round) {
      std::vector<TimeNs> at;
      std::vector<std::int32_t> length;
      TimeNs time = engine.now();
      for (int i = dice(0, 30); i > 0; --i) {
        time += dice(0, 3);
        at.push_back(time);
        length.push_back(dice(0, 130));
      }
      engine.feed(at, length);
      engine.advance(time + dice(0, 10));
      act(engine, dice);
      engine.take_recent();
    }
    engine.finish();
    expect_all_accounted_for(engine, o.warmup);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, SimulateRandom,
                         testing::Values(Policy::kRs, Policy::kIlb, Policy::kIg, Policy::kInfaas, Policy::kUniform,
                                         Policy::kEft, Policy::kLate),
                         [](const auto& policy) { return std::string(dispatch::policy_name(policy.param)); });

}  // namespace
}  // namespace arlo::simulate
