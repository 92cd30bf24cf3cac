// Batches and bundles: which rows go together, on which runtime, and what becomes of them.
#include <map>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

// A batch of one takes 4 ms on 64 tokens and 8 ms on 128; each row more costs 1 and 2 ms.
class BatchRig : public Rig {
 public:
  explicit BatchRig(Batching batching, int limit = 1, Policy policy = Policy::kLate)
      : Rig(Options{.policy = policy, .batching = batching}) {
    for (const std::int32_t length : {64, 128}) {
      const TimeNs row = length / 64 * kMs;
      runtimes.push_back(scheduler.add_runtime({.max_length = length,
                                                .max_batch = 8,
                                                .capacity = 100,
                                                .latency = {{length, 1, 4 * row}, {length, 8, 11 * row}}}));
    }
    bundle = scheduler.add_bundle(runtimes);
    worker = scheduler.join(bundle, limit, now, out);
  }

  // The batches that have started since the last look, in order.
  std::vector<Actions> batches() {
    std::vector<Actions> found;
    for (const Action& a : look()) {
      EXPECT_EQ(a.kind, ActionKind::kStart);
      if (found.empty() || a.batch == kNone || found.back().back().batch != a.batch) found.emplace_back();
      found.back().push_back(a);
    }
    return found;
  }

  void finish(const Actions& batch, Verdict verdict = Verdict::kAnswered) {
    for (const Action& a : batch) scheduler.finish(a.handle, verdict, now, out);
  }

  std::vector<RuntimeId> runtimes;
  RuntimeId bundle = 0;
  InstanceId worker = 0;
};

std::vector<Tag> tags(const Actions& batch) {
  std::vector<Tag> found;
  for (const Action& a : batch) found.push_back(a.tag);
  return found;
}

TEST(Batches, WhatWaitsStartsTogetherWhenTheWorkerIsThrough) {
  BatchRig rig(Batching::kFill);
  rig.arrive(100);
  const auto first = rig.batches();
  ASSERT_EQ(first.size(), 1);
  EXPECT_EQ(first[0][0].runtime, rig.runtimes[1]);
  EXPECT_EQ(first[0][0].batch, kNone);
  for (int i = 0; i < 3; ++i) rig.arrive(50);
  EXPECT_TRUE(rig.look().empty());
  rig.now = 8 * kMs;
  rig.finish(first[0]);
  const auto second = rig.batches();
  ASSERT_EQ(second.size(), 1);
  EXPECT_EQ(tags(second[0]), (std::vector<Tag>{1, 2, 3}));
  EXPECT_EQ(second[0][0].runtime, rig.runtimes[0]);
  EXPECT_EQ(second[0][0].level, 0);
  EXPECT_FALSE(second[0][0].demoted);
  EXPECT_EQ(rig.scheduler.in_flight(), 3);
  EXPECT_EQ(rig.scheduler.view(rig.worker).in_flight, 1);
}

TEST(Batches, TheWorkerHasRoomWithTheLastRow) {
  BatchRig rig(Batching::kFill);
  rig.arrive(10);
  const auto first = rig.batches();
  for (int i = 0; i < 2; ++i) rig.arrive(10);
  rig.finish(first[0]);
  const auto pair = rig.batches();
  ASSERT_EQ(pair[0].size(), 2);
  rig.arrive(10);
  rig.scheduler.finish(pair[0][0].handle, Verdict::kAnswered, rig.now, rig.out);
  EXPECT_TRUE(rig.look().empty());
  rig.scheduler.finish(pair[0][1].handle, Verdict::kFailed, rig.now, rig.out);
  EXPECT_EQ(tags(rig.batches()[0]), (std::vector<Tag>{3}));
}

TEST(Batches, NoMoreRowsThanSaveSomething) {
  BatchRig rig(Batching::kFill);
  rig.arrive(10);
  const auto first = rig.batches();
  for (int i = 0; i < 20; ++i) rig.arrive(10);
  rig.finish(first[0]);
  const auto next = rig.batches();
  ASSERT_EQ(next.size(), 1);
  EXPECT_EQ(next[0].size(), 8) << "each row more makes every one cheaper";
}

TEST(Batches, ARowOfAShorterLineGoesAlongWhereItIsCheaperThere) {
  BatchRig rig(Batching::kFill);
  rig.arrive(100);
  const auto first = rig.batches();
  rig.arrive(100);
  rig.arrive(50);  // alone 4 ms; beside the other one 2 ms more
  rig.finish(first[0]);
  const auto next = rig.batches();
  ASSERT_EQ(next.size(), 1);
  EXPECT_EQ(tags(next[0]), (std::vector<Tag>{1, 2}));
  EXPECT_EQ(next[0][0].runtime, rig.runtimes[1]);
  EXPECT_TRUE(next[0][1].demoted);
}

TEST(Batches, AShortRowThatIsFirstTakesTheLongerRuntimeWithWhatWaitsThere) {
  BatchRig rig(Batching::kFill);
  rig.arrive(100);
  const auto first = rig.batches();
  rig.arrive(50);  // two batches: 4 + 8 ms; one of both: 10 ms
  rig.arrive(100);
  rig.finish(first[0]);
  const auto next = rig.batches();
  ASSERT_EQ(next.size(), 1);
  EXPECT_EQ(next[0].size(), 2);
  EXPECT_EQ(next[0][0].runtime, rig.runtimes[1]);
}

TEST(Batches, FullLinesKeepApart) {
  BatchRig rig(Batching::kFill);
  rig.arrive(100);
  const auto first = rig.batches();
  for (int i = 0; i < 8; ++i) rig.arrive(50);
  for (int i = 0; i < 8; ++i) rig.arrive(100);
  rig.finish(first[0]);
  const auto next = rig.batches();
  ASSERT_EQ(next.size(), 1);
  EXPECT_EQ(next[0].size(), 8);
  EXPECT_EQ(next[0][0].runtime, rig.runtimes[0]);
}

TEST(Batches, ABatchEndsBeforeTheFirstDeadlineInIt) {
  BatchRig rig(Batching::kFill);
  rig.arrive(10);
  const auto first = rig.batches();
  rig.arrive(10, 4 * kMs + 6 * kMs);  // with 2 rows more, 6 ms
  for (int i = 0; i < 7; ++i) rig.arrive(10);
  rig.now = 4 * kMs;
  rig.finish(first[0]);
  const auto next = rig.batches();
  ASSERT_EQ(next.size(), 1);
  EXPECT_EQ(tags(next[0]), (std::vector<Tag>{1, 2, 3}));
}

// A batch of 8 takes 11 ms of short rows, which is as cheap as a row gets; a long row alone costs 8 ms, in a full
// batch 2.75.
TEST(Batches, TheLineThatIsFilledBestGoesFirst) {
  for (const auto& [batching, expected] : {std::pair(Batching::kFill, 1), std::pair(Batching::kDeadline, 8)}) {
    BatchRig rig(batching);
    rig.arrive(10, 400 * kMs);
    const auto first = rig.batches();
    rig.arrive(100, 400 * kMs);
    for (int i = 0; i < 8; ++i) rig.arrive(10, 400 * kMs);
    rig.finish(first[0]);
    const auto next = rig.batches();
    ASSERT_EQ(next.size(), 1);
    EXPECT_EQ(next[0].size(), expected);
    rig.now = 20 * kMs;
    rig.finish(next[0]);
    EXPECT_EQ(rig.batches()[0].size(), 9 - expected);
  }
}

TEST(Batches, ALineThatIsSoonDueGoesBeforeOneThatIsFilledBetter) {
  BatchRig rig(Batching::kDeadline);
  rig.arrive(10, 400 * kMs);
  const auto first = rig.batches();
  for (int i = 0; i < 8; ++i) rig.arrive(10, 400 * kMs);
  rig.arrive(100, 40 * kMs);  // within two batches of 22 ms
  rig.finish(first[0]);
  EXPECT_EQ(tags(rig.batches()[0]), std::vector<Tag>{9});
}

TEST(Batches, WithoutTimeLimitsTheFirstLineGoesFirst) {
  BatchRig rig(Batching::kDeadline);
  rig.arrive(10);
  const auto first = rig.batches();
  rig.arrive(100);
  for (int i = 0; i < 8; ++i) rig.arrive(10);
  rig.finish(first[0]);
  EXPECT_EQ(tags(rig.batches()[0]), std::vector<Tag>{1});
}

// A fresh full batch of short rows is always there; the time that the long row has left counts, squared.
TEST(Batches, ALineThatIsFilledWorseDoesNotWaitForItsLimit) {
  BatchRig rig(Batching::kDeadline);
  rig.arrive(10, 400 * kMs);
  auto running = rig.batches()[0];
  rig.arrive(100, 400 * kMs);
  TimeNs waited = -1;
  while (waited < 0 && rig.now < 400 * kMs) {
    for (int i = 0; i < 8; ++i) rig.arrive(10, rig.now + 400 * kMs);
    rig.now += 11 * kMs;
    rig.finish(running);
    running = rig.batches()[0];
    if (running[0].tag == 1) waited = rig.now;
  }
  EXPECT_GT(waited, 50 * kMs);
  EXPECT_LT(waited, 200 * kMs);
}

TEST(Batches, RequestsThatComeTogetherStartTogether) {
  for (const Policy policy : {Policy::kLate, Policy::kEft, Policy::kRs, Policy::kIg}) {
    BatchRig rig(Batching::kFill, 1, policy);
    rig.scheduler.hold();
    for (int i = 0; i < 10; ++i) rig.arrive(10);
    EXPECT_TRUE(rig.look().empty()) << policy_name(policy);
    rig.scheduler.release(rig.now, rig.out);
    const auto first = rig.batches();
    ASSERT_EQ(first.size(), 1) << policy_name(policy);
    EXPECT_EQ(first[0].size(), 8) << policy_name(policy);
    rig.finish(first[0]);
    EXPECT_EQ(tags(rig.batches()[0]), (std::vector<Tag>{8, 9})) << policy_name(policy);
  }
}

// A queue that is full has room for what can start at once.
TEST(Batches, RequestsThatComeTogetherAreNotTooManyForTheQueueWhileThereIsRoom) {
  for (const Policy policy : {Policy::kLate, Policy::kRs}) {
    Rig rig(Options{.policy = policy, .max_queued = 2, .batching = Batching::kFill});
    const RuntimeId runtime = rig.scheduler.add_runtime(
        {.max_length = 64, .max_batch = 8, .capacity = 100, .latency = {{64, 1, 4 * kMs}, {64, 8, 8 * kMs}}});
    rig.scheduler.join(runtime, 1, 0, rig.out);
    rig.scheduler.hold();
    std::map<Admission, int> admitted;
    for (int i = 0; i < 12; ++i) {
      rig.arrive(10);
      ++admitted[rig.last.admission];
    }
    rig.scheduler.release(rig.now, rig.out);
    EXPECT_EQ(admitted[Admission::kQueued], 10) << policy_name(policy);
    EXPECT_EQ(admitted[Admission::kFull], 2) << policy_name(policy);
    EXPECT_EQ(rig.look().size(), 8) << policy_name(policy);
    EXPECT_EQ(rig.scheduler.queued(), 2) << policy_name(policy);
  }
}

// Of a batch that failed, halves: who is at fault is found after as many steps as there are halves, and nothing that
// has not failed goes along.
TEST(Batches, WhatIsOnTrialGoesInHalvesAndByItself) {
  BatchRig rig(Batching::kFill);
  rig.scheduler.hold();
  for (int i = 0; i < 8; ++i) rig.arrive(10);
  rig.scheduler.release(rig.now, rig.out);
  const auto failed = rig.batches();
  for (int i = 0; i < 4; ++i) rig.arrive(10);
  for (const Action& a : failed[0]) rig.scheduler.retry(a.handle, rig.worker, rig.now, rig.out, 4);
  const auto half = rig.batches();
  ASSERT_EQ(half.size(), 1);
  EXPECT_EQ(tags(half[0]), (std::vector<Tag>{0, 1, 2, 3}));
  rig.finish(half[0]);
  const auto other = rig.batches();
  EXPECT_EQ(tags(other[0]), (std::vector<Tag>{4, 5, 6, 7}));
  for (const Action& a : other[0]) rig.scheduler.retry(a.handle, rig.worker, rig.now, rig.out, 1);
  for (Tag tag = 4; tag < 8; ++tag) {
    const auto alone = rig.batches();
    EXPECT_EQ(tags(alone[0]), (std::vector<Tag>{tag}));
    rig.finish(alone[0]);
  }
  EXPECT_EQ(tags(rig.batches()[0]), (std::vector<Tag>{8, 9, 10, 11}));
}

// It starts where an instance idles, as batches that keep it for a quarter of the SLO; and yields to what comes.
TEST(Bulk, FillsWhatOthersLeave) {
  for (const Policy policy : {Policy::kLate, Policy::kEft, Policy::kRs}) {
    BatchRig rig(Batching::kDeadline, 2, policy);
    const auto bulk = [&rig](int rows) {
      for (int i = 0; i < rows; ++i) {
        rig.scheduler.arrive(rig.tags++, {.length = 100, .client = 7, .bulk = true}, rig.now, rig.out);
      }
    };
    bulk(20);
    const auto first = rig.batches();
    ASSERT_EQ(first.size(), 1) << policy_name(policy) << ": nothing is sent ahead for it";
    EXPECT_EQ(first[0].size(), 1);
    EXPECT_EQ(rig.scheduler.queued(), 19);
    rig.scheduler.arrive(rig.tags++, {.length = 100, .due = rig.now + 1000 * kMs, .client = 1}, rig.now, rig.out);
    EXPECT_EQ(tags(rig.batches()[0]), (std::vector<Tag>{20})) << policy_name(policy) << ": it has room at once";
    rig.now += 8 * kMs;
    rig.finish(first[0]);
    EXPECT_TRUE(rig.look().empty()) << policy_name(policy) << ": while others run";
  }
}

TEST(Bulk, IsNeverStarved) {
  BatchRig rig(Batching::kDeadline, 1);
  rig.scheduler.arrive(rig.tags++, {.length = 100, .due = rig.now + 1000 * kMs}, rig.now, rig.out);
  auto running = rig.batches();
  for (int i = 0; i < 3; ++i) rig.scheduler.arrive(1000, {.length = 100, .bulk = true}, rig.now, rig.out);
  int turns = 0;
  for (int bulk = 0; bulk < 1 && turns < 100; ++turns) {
    rig.scheduler.arrive(rig.tags++, {.length = 100, .due = rig.now + 1000 * kMs}, rig.now, rig.out);
    rig.now += 8 * kMs;
    rig.finish(running[0]);
    running = rig.batches();
    ASSERT_EQ(running.size(), 1);
    bulk += running[0][0].tag == 1000 ? 1 : 0;
  }
  EXPECT_LE(turns, 33);
  EXPECT_EQ(running[0].size(), 3) << "what waits of it goes along";
}

TEST(Bulk, HasHalfOfTheQueue) {
  Rig rig(Options{.policy = Policy::kLate, .max_queued = 10, .batching = Batching::kDeadline});
  rig.scheduler.join(rig.scheduler.add_runtime({.max_length = 64, .capacity = 10, .latency = {{64, 1, kMs}}}), 1, 0,
                     rig.out);
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    refused += rig.scheduler.arrive(0, {.length = 9, .bulk = true}, 0, rig.out).admission == Admission::kFull ? 1 : 0;
  }
  EXPECT_EQ(rig.scheduler.queued(), 5);
  EXPECT_EQ(refused, 14);
}

TEST(Batches, WhatIsCancelledIsLeftOut) {
  BatchRig rig(Batching::kFill);
  rig.arrive(10);
  const auto first = rig.batches();
  rig.arrive(10);
  const RequestHandle cancelled = rig.arrive(10);
  rig.arrive(10);
  EXPECT_TRUE(rig.scheduler.cancel(cancelled, 2, rig.now, rig.out));
  rig.finish(first[0]);
  EXPECT_EQ(tags(rig.batches()[0]), (std::vector<Tag>{1, 3}));
}

TEST(Batches, OneIsSentAheadWhereTheLimitIsTwo) {
  BatchRig rig(Batching::kFill, 2);
  rig.arrive(10);
  rig.arrive(10);
  ASSERT_EQ(rig.batches().size(), 2) << "room for two batches";
  for (int i = 0; i < 3; ++i) rig.arrive(10);
  EXPECT_TRUE(rig.look().empty());
}

TEST(Batches, ALostBatchComesBackRowByRow) {
  BatchRig rig(Batching::kFill);
  rig.arrive(10);
  const auto first = rig.batches();
  for (int i = 0; i < 3; ++i) rig.arrive(10);
  rig.finish(first[0]);
  rig.look();
  rig.scheduler.leave(rig.worker, rig.now, rig.out);
  const Actions lost = rig.look();
  ASSERT_EQ(lost.size(), 3);
  const InstanceId another = rig.scheduler.join(rig.bundle, 1, rig.now, rig.out);
  for (const Action& a : lost) {
    EXPECT_EQ(a.kind, ActionKind::kLost);
    rig.scheduler.retry(a.handle, rig.worker == another ? kNone : rig.worker, rig.now, rig.out);
  }
  EXPECT_EQ(rig.scheduler.in_flight() + rig.scheduler.queued(), 3);
}

TEST(Batches, BoundRowsGoTogetherToo) {
  BatchRig rig(Batching::kFill, 1, Policy::kEft);
  rig.arrive(10);
  const auto first = rig.batches();
  for (int i = 0; i < 3; ++i) rig.arrive(10);
  EXPECT_EQ(rig.scheduler.view(rig.worker).queued, 3);
  rig.finish(first[0]);
  EXPECT_EQ(rig.batches()[0].size(), 3);
}

TEST(Bundles, AreOfRuntimesThatAreThere) {
  Scheduler scheduler(Options{.policy = Policy::kLate});
  const RuntimeId runtime = scheduler.add_runtime(static_runtime(64));
  EXPECT_THROW(scheduler.add_bundle({}), std::invalid_argument);
  EXPECT_THROW(scheduler.add_bundle({runtime, runtime}), std::invalid_argument);
  EXPECT_THROW(scheduler.add_bundle({runtime + 1}), std::invalid_argument);
  const RuntimeId bundle = scheduler.add_bundle({runtime});
  EXPECT_THROW(scheduler.add_bundle({bundle}), std::invalid_argument);
}

TEST(Bundles, EachRowRunsWhereItCostsLeast) {
  BatchRig rig(Batching::kOne);
  rig.arrive(10);
  EXPECT_EQ(rig.look()[0].runtime, rig.runtimes[0]);
  EXPECT_EQ(rig.scheduler.cost(rig.bundle, 10), 4 * kMs);
  EXPECT_EQ(rig.scheduler.cost(rig.bundle, 100), 8 * kMs);
  EXPECT_EQ(rig.scheduler.cost(rig.bundle, 100, 8), 22 * kMs);
}

}  // namespace
}  // namespace arlo::dispatch
