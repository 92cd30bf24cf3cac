// The order of events at equal times, pair by pair, as simulate/engine.h writes it: the caller's calls, execution ends
// and rows that reach workers, what the scheduler learns, joins, expiry, arrivals.
#include "simulate_fixture.h"

namespace arlo::simulate {
namespace {

using dispatch::Policy;

// --- advance and the caller's calls ---------------------------------------------------------------------------------

TEST(SimulateTies, AdvanceDoesNothingThatIsDueThen) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 5);
  rig.arrive(7);
  rig.engine.advance(5);
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kStarting);
  rig.engine.advance(6);
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kServing);
  EXPECT_EQ(rig.engine.worker(0).since, 5);
  rig.engine.advance(7);
  EXPECT_EQ(rig.engine.totals().arrived, 0U);
  rig.engine.advance(17);
  EXPECT_EQ(rig.engine.totals().arrived, 1U);
  EXPECT_EQ(rig.engine.worker(0).executing, 1);
  EXPECT_EQ(rig.engine.worker(0).busy, 10);
  rig.engine.advance(17);
  EXPECT_EQ(rig.engine.worker(0).executing, 1);
  rig.engine.advance(18);
  EXPECT_EQ(rig.engine.worker(0).executing, 0);
  EXPECT_EQ(rig.latency(0), 10);
  EXPECT_EQ(rig.engine.now(), 18);
}

TEST(SimulateTies, AFailureComesBeforeTheEndOfTheExecution) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(0);
  rig.engine.advance(10);
  rig.engine.fail(0, 5);
  rig.engine.finish();
  EXPECT_EQ(rig.begun(0), 15) << "it was lost and done again";
  EXPECT_EQ(rig.latency(0), 25);
  EXPECT_EQ(rig.engine.totals().retried, 1U);
  EXPECT_EQ(rig.engine.worker(0).busy, 20);
  EXPECT_EQ(rig.engine.runtime(0).busy, 20);
  EXPECT_EQ(rig.engine.runtime(0).batches, 1U);
}

TEST(SimulateTies, AReplacementComesBeforeTheEndOfTheExecution) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(0);
  rig.arrive(0);
  rig.engine.advance(10);
  rig.engine.replace(0, 0, 7);
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kDraining);
  rig.engine.finish();
  EXPECT_EQ(rig.begun(1), 10) << "bound to it, and nobody else fits: it finishes that first";
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kServing);
  EXPECT_EQ(rig.engine.worker(0).since, 20 + 7);
}

TEST(SimulateTies, ARemovalComesBeforeAnArrival) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(3);
  rig.engine.advance(3);
  rig.engine.remove(0);
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kGone);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(0), Outcome::kFailed);
  EXPECT_EQ(rig.begun(0), -1);
}

TEST(SimulateTies, ARemovalComesBeforeTheJoin) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 3);
  rig.arrive(3);
  rig.engine.advance(3);
  rig.engine.remove(0);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.worker(0).state, WorkerState::kGone);
  EXPECT_EQ(rig.outcome(0), Outcome::kFailed);
}

TEST(SimulateTies, AFailureComesBeforeTheExpiry) {
  Options o = options();
  o.timeout = 10;
  Rig rig(o);
  rig.engine.add_worker(rig.surprising(64, 50), 0);
  rig.arrive(0);  // executes when its time comes: expires with its answer, or with its worker
  rig.arrive(0);
  rig.engine.advance(10);
  rig.engine.fail(0, kNever);
  EXPECT_EQ(rig.outcome(0), Outcome::kExpired) << "found dead when it is to be scheduled again";
  EXPECT_EQ(rig.outcome(1), Outcome::kExpired) << "found dead when it loses its place";
  EXPECT_EQ(rig.engine.totals().retried, 0U);
}

// --- execution ends before ... --------------------------------------------------------------------------------------

TEST(SimulateTies, AnExecutionEndsBeforeTheSchedulerLearnsOfAnother) {
  // Batches of two; the scheduler knows of a batch when the next one ends. At 20 the worker takes what it has (r3)
  // before it hears of r4, which the end of r0 lets start.
  Options o = options();
  o.hop_back = 10;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10, 4, 2), 0);
  for (int i = 0; i < 5; ++i) rig.arrive(0);
  rig.engine.finish();
  const std::vector<TimeNs> begun = {rig.begun(0), rig.begun(1), rig.begun(2), rig.begun(3), rig.begun(4)};
  EXPECT_EQ(begun, (std::vector<TimeNs>{0, 10, 10, 20, 30}));
}

TEST(SimulateTies, WithNoWayBackTheSchedulerLearnsWithinTheEnd) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10, 2, 2), 0);
  for (int i = 0; i < 3; ++i) rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.begun(1), 10);
  EXPECT_EQ(rig.begun(2), 10) << "in time for the batch";
}

TEST(SimulateTies, AnExecutionEndsBeforeAJoin) {
  Rig rig(options());
  const RuntimeId runtime = rig.runtime(64, 10);
  rig.engine.add_worker(runtime, 0);
  rig.engine.add_worker(runtime, 10);
  rig.arrive(0);
  rig.arrive(0);  // bound to worker 0; one that joins earlier would take it
  rig.engine.finish();
  EXPECT_EQ(rig.worker(1), 0U);
  EXPECT_EQ(rig.begun(1), 10);
}

TEST(SimulateTies, AnExecutionEndsBeforeTheExpiry) {
  Options o = options();
  o.timeout = 10;
  Rig rig(o);
  rig.engine.add_worker(rig.surprising(64, 10), 0);
  rig.arrive(0);
  rig.arrive(0);
  rig.arrive(4);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(0), Outcome::kOnTime) << "answered at the very moment of its timeout";
  EXPECT_EQ(rig.outcome(1), Outcome::kExpired) << "its turn comes at its deadline: too late";
  EXPECT_EQ(rig.begun(1), -1);
  EXPECT_EQ(rig.begun(2), 10);
  EXPECT_EQ(rig.outcome(2), Outcome::kExpired) << "answered at 20, its client left at 14";
  EXPECT_EQ(rig.latency(2), -1);
}

TEST(SimulateTies, AnExecutionEndsBeforeAnArrival) {
  Options o = options();
  o.dispatch.max_queued = 0;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(0);
  rig.arrive(9);
  rig.arrive(10);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(1), Outcome::kRejected);
  EXPECT_EQ(rig.outcome(2), Outcome::kOnTime);
  EXPECT_EQ(rig.begun(2), 10);
}

// --- rows that reach a worker ---------------------------------------------------------------------------------------

TEST(SimulateTies, RowsThatReachAWorkerAtOnceAreOneBatch) {
  Options o = options();
  o.hop_out = 4;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10, 8, 2), 0);
  for (int i = 0; i < 3; ++i) rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.begun(0), 4);
  EXPECT_EQ(rig.begun(1), 4);
  EXPECT_EQ(rig.begun(2), 14);
}

TEST(SimulateTies, ARowThatComesWhenTheBatchEndsIsInTheNext) {
  Options o = options();
  o.hop_out = 4;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10, 8, 4), 0);
  rig.arrive(0);
  rig.arrive(3);
  rig.arrive(10);  // there at 14, when the first batch ends
  rig.arrive(11);
  rig.engine.finish();
  EXPECT_EQ(rig.begun(1), 14);
  EXPECT_EQ(rig.begun(2), 14);
  EXPECT_EQ(rig.begun(3), 24);
}

// --- the scheduler learns before ... --------------------------------------------------------------------------------

TEST(SimulateTies, TheSchedulerLearnsBeforeAJoin) {
  Options o = options();
  o.hop_back = 5;
  Rig rig(o);
  const RuntimeId runtime = rig.runtime(64, 10);
  rig.engine.add_worker(runtime, 0);
  rig.engine.add_worker(runtime, 15);
  rig.arrive(0);
  rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.worker(1), 0U);
  EXPECT_EQ(rig.begun(1), 15);
  EXPECT_EQ(rig.latency(1), 30);
}

TEST(SimulateTies, TheSchedulerLearnsBeforeTheExpiry) {
  Options o = options();
  o.hop_back = 5;
  o.timeout = 15;
  Rig rig(o);
  rig.engine.add_worker(rig.surprising(64, 10), 0);
  rig.arrive(0);
  rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(0), Outcome::kOnTime);
  EXPECT_EQ(rig.outcome(1), Outcome::kExpired);
}

TEST(SimulateTies, TheSchedulerLearnsBeforeAnArrival) {
  Options o = options();
  o.hop_back = 5;
  o.dispatch.max_queued = 0;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.arrive(0);
  rig.arrive(14);
  rig.arrive(15);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(1), Outcome::kRejected);
  EXPECT_EQ(rig.begun(2), 15);
}

// --- joins, expiry, arrivals ----------------------------------------------------------------------------------------

TEST(SimulateTies, AJoinComesBeforeTheExpiryAndDeadRequestsDoNotStart) {
  Options o = options();
  o.timeout = 10;
  Rig rig(o);
  rig.engine.add_worker(rig.surprising(64, 5), 10);
  rig.arrive(0);  // parked; its deadline is the moment of the join
  rig.arrive(1);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(0), Outcome::kExpired);
  EXPECT_EQ(rig.begun(0), -1);
  EXPECT_EQ(rig.begun(1), 10);
}

TEST(SimulateTies, AJoinComesBeforeTheExpiryLooksAtWhatWaits) {
  // Worker 0 is ten times as slow as believed, and r2 waits for it, until 55. r1, which nothing fits, expires at 40,
  // when worker 2 joins and takes r2. expire() alone would see that worker 0 is 30 late, expect it at 70, and give r2
  // up.
  Options o = options(Policy::kLate);
  o.timeout = 40;
  Rig rig(o);
  const RuntimeId shorter = rig.runtime(64, 10);
  const RuntimeId longer = rig.runtime(128, 30);
  rig.engine.add_worker(shorter, 0);
  rig.engine.add_worker(longer, 0);
  rig.engine.add_worker(shorter, 40);
  rig.engine.slow(0, 10);
  rig.runtime(256, 10);
  rig.arrive(0);
  rig.arrive(0, 200);
  rig.arrive(15);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(1), Outcome::kExpired);
  EXPECT_EQ(rig.worker(2), 2U);
  EXPECT_EQ(rig.begun(2), 40);
}

TEST(SimulateTies, ExpiryLooksAtWhatWaits) {
  Options o = options(Policy::kLate);
  o.timeout = 40;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  rig.engine.add_worker(rig.runtime(128, 30), 0);
  rig.engine.slow(0, 10);
  rig.runtime(256, 10);
  rig.arrive(0);
  rig.arrive(0, 200);
  rig.arrive(15);
  rig.engine.advance(41);
  EXPECT_EQ(rig.outcome(2), Outcome::kExpired) << "the same without worker 2: it cannot be answered by 55";
}

TEST(SimulateTies, AJoinComesBeforeAnArrival) {
  Options o = options();
  o.dispatch.max_queued = 0;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 10), 3);
  rig.arrive(2);
  rig.arrive(3);
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(0), Outcome::kRejected);
  EXPECT_EQ(rig.begun(1), 3);
}

TEST(SimulateTies, ExpiryComesBeforeAnArrival) {
  Options o = options();
  o.timeout = 10;
  o.dispatch.max_queued = 1;
  Rig rig(o);
  rig.engine.add_worker(rig.surprising(64, 12), 0);
  rig.arrive(0);
  rig.arrive(0);   // waits until 10
  rig.arrive(9);   // no place
  rig.arrive(10);  // the place is free
  rig.engine.finish();
  EXPECT_EQ(rig.outcome(1), Outcome::kExpired);
  EXPECT_EQ(rig.outcome(2), Outcome::kRejected);
  EXPECT_EQ(rig.begun(3), 12);
}

// --- two of a kind --------------------------------------------------------------------------------------------------

TEST(SimulateTies, TwoWorkersThatEndAtOnceGoById) {
  // Worker 1 joins first, so that the scheduler's ids are the other way round.
  for (const TimeNs hop_back : {0, 5}) {
    Options o = options(Policy::kLate);
    o.hop_back = hop_back;
    Rig rig(o);
    const RuntimeId runtime = rig.runtime(64, 10);
    rig.engine.add_worker(runtime, 1);
    rig.engine.add_worker(runtime, 0);
    rig.arrive(2);
    rig.arrive(2);
    rig.arrive(3);
    rig.engine.finish();
    EXPECT_EQ(rig.worker(0), 1U) << "the first instance";
    EXPECT_EQ(rig.worker(1), 0U);
    EXPECT_EQ(rig.worker(2), 0U) << "both end at 12";
    EXPECT_EQ(rig.begun(2), 12 + hop_back);
  }
}

TEST(SimulateTies, JoinsAtOnceGoInTheOrderInWhichTheyWereSet) {
  Rig rig(options());
  const RuntimeId runtime = rig.runtime(64, 10);
  rig.engine.add_worker(runtime, 9);
  rig.engine.add_worker(runtime, 10);
  rig.engine.replace(0, runtime, 10);  // set anew, after that of worker 1
  rig.arrive(10);
  rig.arrive(10);
  rig.engine.finish();
  EXPECT_EQ(rig.worker(0), 1U);
  EXPECT_EQ(rig.worker(1), 0U);
}

TEST(SimulateTies, ArrivalsAtOnceGoInTheOrderFed) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 10), 0);
  const std::vector<TimeNs> at = {4, 4, 4};
  const std::vector<std::int32_t> length = {30, 10, 20};
  rig.engine.feed(at, length);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.columns().length, length);
  EXPECT_EQ(rig.begun(0), 4);
  EXPECT_EQ(rig.begun(1), 14);
  EXPECT_EQ(rig.begun(2), 24);
}

TEST(SimulateTies, WhatTakesNoTimeEndsBeforeTheNextArrival) {
  Options o = options();
  o.dispatch.max_queued = 0;
  Rig rig(o);
  rig.engine.add_worker(rig.runtime(64, 0), 0);
  for (int i = 0; i < 50; ++i) rig.arrive(3);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.totals().outcomes[static_cast<int>(Outcome::kOnTime)], 50U);
  EXPECT_EQ(rig.engine.totals().latency_max, 0);
  EXPECT_EQ(rig.engine.now(), 3);
}

}  // namespace
}  // namespace arlo::simulate
