// Workers that come, go, change, fail and slow down; the end of a simulation; what is refused.
#include <stdexcept>

#include "simulate_fixture.h"

namespace arlo::simulate {
namespace {

TEST(SimulateLife, AReplacedWorkerLoadsWhenItIsEmpty) {
  Rig rig(options());
  const RuntimeId a = rig.runtime(64, 10);
  const RuntimeId b = rig.runtime(128, 20);
  rig.engine.add_worker(a, 0);
  rig.engine.add_worker(b, 0);
  rig.arrive(0);
  rig.arrive(2);  // bound to worker 0 as well
  rig.engine.advance(5);
  rig.engine.replace(0, b, 100);
  rig.engine.advance(6);
  EXPECT_EQ(rig.engine.worker(1).executing, 1) << "what had not begun goes where it fits";
  rig.engine.advance(11);
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kStarting);
  EXPECT_EQ(rig.engine.worker(0).runtime, b);
  EXPECT_EQ(rig.engine.worker(0).since, 10);
  rig.engine.advance(111);
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kServing);
  EXPECT_EQ(rig.engine.worker(0).since, 110);
}

TEST(SimulateLife, ADrainingWorkerCanBeToldOtherwise) {
  Rig rig(options());
  const RuntimeId a = rig.runtime(64, 10);
  rig.engine.add_worker(a, 0);
  rig.engine.add_worker(a, 0);
  rig.arrive(0);
  rig.arrive(0);
  rig.engine.advance(1);
  rig.engine.replace(0, a, 5);
  rig.engine.remove(0);
  rig.engine.remove(1);
  rig.engine.replace(1, a, 5);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kGone);
  EXPECT_EQ(rig.engine.worker(1).state, WorkerState::kServing);
}

TEST(SimulateLife, AFailedWorkerThatWasToLoadComesBackWithThat) {
  Rig rig(options());
  const RuntimeId a = rig.runtime(64, 10);
  const RuntimeId b = rig.runtime(128, 20);
  rig.engine.add_worker(a, 0);
  rig.engine.add_worker(a, 0);
  rig.arrive(0);
  rig.arrive(0);
  rig.engine.advance(1);
  rig.engine.replace(0, b, 5);
  rig.engine.fail(0, 30);
  rig.engine.remove(1);
  rig.engine.fail(1, 30);
  EXPECT_EQ(rig.engine.worker(1).state, WorkerState::kGone) << "it was to go";
  rig.engine.finish();
  EXPECT_EQ(rig.engine.worker(0).runtime, b);
  EXPECT_EQ(rig.begun(0), 31);
  EXPECT_EQ(rig.engine.runtime(b).served, 2U);
}

TEST(SimulateLife, WhatWasExecutedIsAnsweredThoughItsWorkerFails) {
  Options o = options();
  o.hop_back = 5;
  o.retries = 0;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10, 2), 0);
  rig.arrive(0);
  rig.arrive(0);
  rig.engine.advance(12);
  rig.engine.fail(0, kNever);
  rig.engine.finish();
  EXPECT_EQ(rig.latency(0), 15);
  EXPECT_EQ(rig.outcome(1), Outcome::kFailed);
  EXPECT_EQ(rig.engine.totals().outcomes[static_cast<int>(Outcome::kOnTime)], 1U);
  EXPECT_EQ(rig.engine.totals().outcomes[static_cast<int>(Outcome::kFailed)], 1U);
  EXPECT_EQ(rig.begun(1), 10);
  EXPECT_EQ(rig.engine.worker(0).busy, 12);
  EXPECT_EQ(rig.engine.runtime(0).busy, 12);
}

TEST(SimulateLife, ALostRequestIsTriedAsOftenAsAllowed) {
  Options o = options();
  o.retries = 2;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(0);
  for (TimeNs at = 5; at <= 15; at += 5) {
    rig.engine.advance(at);
    rig.engine.fail(0, 0);
  }
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(0), Outcome::kFailed);
  EXPECT_EQ(rig.engine.totals().retried, 2U);
  EXPECT_EQ(rig.begun(0), 10) << "of the last try";
}

TEST(SimulateLife, ARetriedRequestGoesFirst) {
  Rig rig(options());
  const RuntimeId a = rig.runtime(64, 10);
  rig.engine.add_worker(a, 0);
  rig.engine.add_worker(a, 0);
  for (int i = 0; i < 4; ++i) rig.arrive(0);
  rig.engine.advance(5);
  rig.engine.fail(0, kNever);  // r0 executed there, r2 was bound there
  rig.engine.finish();
  EXPECT_EQ(rig.begun(0), 10);
  EXPECT_EQ(rig.begun(2), 20);
  EXPECT_EQ(rig.begun(3), 30);
}

TEST(SimulateLife, SlownessIsOfTheWorkerAndFromNowOn) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  for (int i = 0; i < 3; ++i) rig.arrive(0);
  rig.engine.advance(5);
  rig.engine.slow(0, 2.5);
  rig.engine.advance(11);
  rig.engine.fail(0, 4);
  rig.engine.finish();
  EXPECT_EQ(rig.latency(0), 10);
  EXPECT_EQ(rig.latency(1), 15 + 25) << "slow after the restart, too";
  EXPECT_EQ(rig.latency(2), 15 + 50);
}

TEST(SimulateLife, TimeEnds) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 3'600'000'000'000), 0);
  rig.engine.slow(0, 1e6);
  for (int i = 0; i < 5; ++i) rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.now(), TimeNs{1} << 61);
  EXPECT_EQ(rig.outcome(4), Outcome::kLate);
}

TEST(SimulateLife, JoinsThatWereCalledOffAreNoEvents) {
  Rig rig(options());
  const RuntimeId a = rig.runtime(64, 10);
  rig.engine.add_worker(a, 0);
  rig.engine.add_worker(a, 5000);
  rig.engine.remove(1);
  rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.now(), 10);
}

TEST(SimulateLife, TimeDoesNotGoBackAfterFinish) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(5);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.now(), 15);
  EXPECT_THROW(rig.arrive(14), std::invalid_argument);
  rig.arrive(15);
  rig.engine.finish();
  EXPECT_EQ(rig.latency(1), 10);
}

TEST(SimulateLife, PartsOfALatency) {
  Options o = options();
  o.hop_out = 3;
  o.hop_back = 4;
  o.overhead = 100;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(0);
  rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.latency(0), 3 + 10 + 4 + 100);
  EXPECT_EQ(rig.begun(1), 17 + 3) << "the overhead occupies nothing; both ways do";
  EXPECT_EQ(rig.latency(1), 17 + 17 + 100);
  EXPECT_EQ(rig.engine.totals().wait_sum_ns, 3 + 20);
  EXPECT_EQ(rig.engine.totals().execute_sum_ns, 20);
}

TEST(SimulateLife, TheLongestRowOfADynamicBatchCounts) {
  Rig rig(options());
  rig.engine.add_worker(
      rig.engine.add_runtime({.spec = {.max_length = 100,
                                       .max_batch = 2,
                                       .capacity = 9,
                                       .dynamic = true,
                                       .latency = {{10, 1, 10}, {100, 1, 100}, {10, 2, 20}, {100, 2, 200}}},
                              .inflight_limit = 3,
                              .truth = {}}),
      0);
  rig.arrive(0, 10);
  rig.arrive(0, 55);
  rig.arrive(0, 30);
  rig.engine.finish();
  EXPECT_EQ(rig.latency(0), 10);
  EXPECT_EQ(rig.latency(1), 10 + 110);
  EXPECT_EQ(rig.latency(2), 10 + 110);
  EXPECT_EQ(rig.engine.totals().tokens, 95U);
  EXPECT_EQ(rig.engine.totals().padded_tokens, 10U + 2 * 55U);
}

TEST(SimulateLife, RefusedCallsChangeNothing) {
  Rig rig(options());
  const dispatch::RuntimeSpec spec{64, 0, 1, false, {{64, 1, 10}}};
  EXPECT_THROW(rig.engine.add_runtime({spec, 1, {}}), std::invalid_argument) << "max_batch";
  EXPECT_EQ(rig.engine.runtimes(), 0U);
  EXPECT_EQ(rig.runtime(64, 10), 0U);
  EXPECT_THROW(rig.engine.add_worker(1, 0), std::invalid_argument);
  rig.engine.add_worker(0, 0);
  rig.engine.advance(10);
  EXPECT_THROW(rig.engine.add_worker(0, 9), std::invalid_argument);
  EXPECT_THROW(rig.engine.replace(0, 7, 1), std::invalid_argument);
  EXPECT_THROW(rig.engine.replace(1, 0, 1), std::invalid_argument);
  EXPECT_THROW(rig.engine.fail(0, -1), std::invalid_argument);
  EXPECT_THROW(rig.engine.advance(9), std::invalid_argument);
  const std::vector<TimeNs> at = {11, 10};
  const std::vector<std::int32_t> length = {1, 1};
  EXPECT_THROW(rig.engine.feed(at, length), std::invalid_argument);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.workers(), 1U);
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kServing);
  EXPECT_EQ(rig.engine.totals().arrived, 0U);
  rig.engine.remove(0);
  EXPECT_THROW(rig.engine.remove(0), std::invalid_argument) << "it is gone";
}

}  // namespace
}  // namespace arlo::simulate
