// Several networks on the same workers: whose turn it is, what each gets, and that those that share nothing do not
// touch each other.
#include <array>
#include <map>
#include <random>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

// A full batch of `rows` takes `latency`, a row alone a quarter of it; M tells an SLO of 100 ms.
RuntimeSpec runtime_of(VariantId variant, std::int32_t max_length, TimeNs latency = 4 * kMs, std::int32_t rows = 8) {
  return {.max_length = max_length,
          .max_batch = rows,
          .capacity = static_cast<std::int32_t>(100 * kMs * rows / latency),
          .latency = {{max_length, 1, latency / 4}, {max_length, rows, latency}},
          .variant = variant};
}

struct Shared {
  explicit Shared(int workers = 1, Policy policy = Policy::kLate, Batching batching = Batching::kFill)
      : scheduler(Options{.policy = policy, .max_queued = 1000, .batching = batching}) {
    const RuntimeId a = scheduler.add_runtime(runtime_of(0, 64));
    const RuntimeId b = scheduler.add_runtime(runtime_of(1, 64));
    const RuntimeId both = scheduler.add_bundle({a, b});
    for (int i = 0; i < workers; ++i) scheduler.join(both, 1, now, out);
  }

  Admitted arrive(VariantId variant, TimeNs slo, std::int32_t length = 10, TimeNs patience = 0) {
    const Arrival arrival{.length = length,
                          .due = slo == kNever ? kNever : now + slo,
                          .deadline = slo == kNever ? kNever : now + (patience == 0 ? slo : patience),
                          .variant = variant};
    variant_of.push_back(variant);
    return scheduler.arrive(variant_of.size() - 1, arrival, now, out);
  }

  // The worker's batch ends after `took`; the tags of the one that starts then.
  std::vector<Tag> next(TimeNs took = 4 * kMs) {
    now += took;
    const std::vector<RequestHandle> rows = running;
    for (const RequestHandle h : rows) scheduler.finish(h, Verdict::kAnswered, now, out);
    return started();
  }
  std::vector<Tag> started() {
    std::vector<Tag> tags;
    running.clear();
    for (const Action& a : out) {
      if (a.kind != ActionKind::kStart) continue;
      tags.push_back(a.tag);
      running.push_back(a.handle);
    }
    out.clear();
    return tags;
  }

  Scheduler scheduler;
  Actions out;
  TimeNs now = 0;
  std::vector<VariantId> variant_of;
  std::vector<RequestHandle> running;
};

TEST(Variants, EachHasItsLevelsAndItsLongest) {
  Scheduler scheduler(Options{.policy = Policy::kLate});
  scheduler.add_runtime(runtime_of(1, 512));
  scheduler.add_runtime(runtime_of(0, 128));
  scheduler.add_runtime(runtime_of(1, 64));
  ASSERT_EQ(scheduler.levels(), 3);
  EXPECT_EQ(scheduler.level_max_length(0), 128);
  EXPECT_EQ(scheduler.level_max_length(1), 64);
  EXPECT_EQ(scheduler.level_max_length(2), 512);
  EXPECT_EQ(scheduler.ideal_level(100, 0), 0);
  EXPECT_EQ(scheduler.ideal_level(100, 1), 2);
  EXPECT_EQ(scheduler.ideal_level(200, 0), -1);
  EXPECT_EQ(scheduler.ideal_level(10, 2), -1);
  Actions out;
  EXPECT_EQ(scheduler.arrive(0, {.length = 200, .variant = 0}, 0, out).admission, Admission::kTooLong);
  EXPECT_EQ(scheduler.arrive(0, {.length = 200, .variant = 1}, 0, out).admission, Admission::kParked);
  EXPECT_EQ(scheduler.arrive(0, {.length = 1, .variant = 9}, 0, out).admission, Admission::kTooLong);
  EXPECT_THROW(scheduler.add_runtime(runtime_of(kVariants, 64)), std::invalid_argument);
  EXPECT_THROW(scheduler.set_share(0, 0), std::invalid_argument);
}

TEST(Variants, ABatchHasRowsOfOne) {
  Shared shared;
  shared.arrive(0, kNever);
  shared.started();
  for (int i = 0; i < 6; ++i) shared.arrive(static_cast<VariantId>(i % 2), kNever);
  std::size_t rows = 0;
  for (int batch = 0; batch < 2; ++batch) {
    const std::vector<Tag> tags = shared.next();
    ASSERT_EQ(tags.size(), 3U);
    for (const Tag tag : tags) EXPECT_EQ(shared.variant_of[tag], shared.variant_of[tags.front()]);
    rows += tags.size();
  }
  EXPECT_EQ(rows, 6U);
}

TEST(Variants, WhatOnlyAnotherHoldsWaitsForIt) {
  Scheduler scheduler(Options{.policy = Policy::kLate});
  const RuntimeId a = scheduler.add_runtime(runtime_of(0, 64));
  const RuntimeId b = scheduler.add_runtime(runtime_of(1, 64));
  Actions out;
  scheduler.join(a, 1, 0, out);
  EXPECT_TRUE(scheduler.fits_any(10, 0));
  EXPECT_FALSE(scheduler.fits_any(10, 1));
  EXPECT_EQ(scheduler.arrive(7, {.length = 10, .variant = 1}, 0, out).admission, Admission::kParked);
  EXPECT_EQ(scheduler.parked(), 1);
  EXPECT_TRUE(out.empty());
  const InstanceId id = scheduler.join(b, 1, 5, out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out.front().tag, 7U);
  EXPECT_EQ(out.front().instance, id);
}

TEST(Variants, TheOneThatIsDueFirstGoesFirst) {
  Shared shared;
  shared.arrive(0, 200 * kMs);
  shared.started();
  shared.arrive(0, 200 * kMs);
  shared.arrive(1, 50 * kMs);
  EXPECT_EQ(shared.next(), std::vector<Tag>{2});
  EXPECT_EQ(shared.next(), std::vector<Tag>{1});
}

// One row, and always four of the other, which cost less each.
TEST(Variants, TheOneWhoseRowsCostLeastGoesFirstWhileNoneIsSoonDue) {
  Shared shared(1, Policy::kLate, Batching::kDeadline);
  shared.scheduler.set_share(1, 100);
  shared.arrive(0, 100 * kMs);
  shared.started();
  shared.arrive(0, 100 * kMs);
  TimeNs went = -1;
  while (went < 0 && shared.now < 200 * kMs) {
    for (int i = 0; i < 4; ++i) shared.arrive(1, 100 * kMs);
    if (shared.next(2 * kMs).front() == 1) went = shared.now;
  }
  EXPECT_GT(went, 20 * kMs);
  EXPECT_LT(went, 99 * kMs);
}

// A flood of one, whose rows are always the ones due first, and one row of the other every 20 ms.
TEST(Variants, AFloodOfOneLeavesTheOtherItsShare) {
  Shared shared;
  const TimeNs slo = 100 * kMs;
  int light = 0, refused = 0, answered_late = 0;
  std::map<Tag, TimeNs> due;
  TimeNs next_light = 0;
  for (TimeNs step = 0; step < 1000; ++step) {
    for (int i = 0; i < 20; ++i) shared.arrive(0, slo);  // the worker takes 8 in this time
    while (next_light <= shared.now) {
      next_light += 20 * kMs;
      ++light;
      const Admitted admitted = shared.arrive(1, slo);
      if (admitted.handle == kNone) {
        ++refused;
      } else {
        due[shared.variant_of.size() - 1] = shared.now + slo;
      }
    }
    const std::vector<Tag> tags = shared.running.empty() ? shared.started() : shared.next();
    for (const Tag tag : tags) {
      if (shared.variant_of[tag] == 0) continue;
      if (shared.now + 4 * kMs > due.at(tag)) ++answered_late;
      due.erase(tag);
    }
  }
  EXPECT_GT(light, 190);
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(answered_late, 0);
  EXPECT_LE(due.size(), 5U);  // the last ones
}

// Both ask for more than there is.
TEST(Variants, SharesDivideTheTime) {
  for (const double share : {1.0, 3.0}) {
    Shared shared;
    shared.scheduler.set_share(1, share);
    std::array<int, 2> rows{};
    for (int step = 0; step < 2000; ++step) {
      for (int i = 0; i < 10; ++i) {
        shared.arrive(0, 100 * kMs);
        shared.arrive(1, 100 * kMs);
      }
      for (const Tag tag : shared.running.empty() ? shared.started() : shared.next()) ++rows.at(shared.variant_of[tag]);
    }
    EXPECT_NEAR(static_cast<double>(rows[1]) / rows[0], share, 0.1 * share);
  }
}

// What waits of the other, and is due before, is work before a row.
TEST(Variants, WhatTheOthersHaveWaitingCountsAsWait) {
  Shared shared;
  shared.arrive(0, 1000 * kMs);
  shared.started();
  for (int i = 0; i < 8 * 9; ++i) ASSERT_NE(shared.arrive(0, 40 * kMs).handle, kNone);
  // Nine batches of 4 ms are before it; its share would let it pass all but a few, so it is let in, and goes in time.
  ASSERT_NE(shared.arrive(1, 41 * kMs).handle, kNone);
  const Tag tag = shared.variant_of.size() - 1;
  const TimeNs limit = shared.now + 41 * kMs;
  bool seen = false;
  for (int batch = 0; batch < 10 && !seen; ++batch) {
    for (const Tag t : shared.next()) seen = seen || t == tag;
  }
  EXPECT_TRUE(seen);
  EXPECT_LE(shared.now + kMs, limit);
  // One that may not wait for even a few of them is refused, and told how long it would be.
  for (int i = 0; i < 8 * 8; ++i) shared.arrive(0, 40 * kMs);
  const Admitted refused = shared.arrive(1, 2 * kMs);
  EXPECT_EQ(refused.admission, Admission::kTooLate);
  EXPECT_GT(refused.predicted, 2 * kMs);
}

// One's queue is full: the other's is not.
TEST(Variants, EachHasAQueueOfItsOwn) {
  Scheduler scheduler(Options{.policy = Policy::kLate, .max_queued = 3});
  Actions out;
  const RuntimeId a = scheduler.add_runtime(runtime_of(0, 64));
  const RuntimeId b = scheduler.add_runtime(runtime_of(1, 64));
  scheduler.join(scheduler.add_bundle({a, b}), 1, 0, out);
  for (Tag tag = 0; tag < 4; ++tag) EXPECT_NE(scheduler.arrive(tag, {.length = 1}, 0, out).handle, kNone);
  EXPECT_EQ(scheduler.arrive(4, {.length = 1}, 0, out).admission, Admission::kFull);
  EXPECT_EQ(scheduler.arrive(5, {.length = 1, .variant = 1}, 0, out).admission, Admission::kQueued);
}

// Two variants in one scheduler, on workers of their own, and each in a scheduler of its own: the same decisions.
class Apart : public ::testing::TestWithParam<Policy> {
 protected:
  struct Row {
    ActionKind kind;
    Tag tag;
    std::uint32_t instance;  // as the program numbers it
    bool demoted;
    bool operator==(const Row&) const = default;
  };
  struct Side {
    explicit Side(const Options& options) : scheduler(options) {}
    Scheduler scheduler;
    std::map<std::uint32_t, InstanceId> id;  // by the program's number
    std::map<InstanceId, std::uint32_t> number;
    std::map<Tag, RequestHandle> handle;
    Actions out;
    std::vector<Row> take() {
      std::vector<Row> rows;
      for (const Action& a : out) {
        rows.push_back({a.kind, a.tag, a.instance == kNone ? kNone : number.at(a.instance), a.demoted});
        handle[a.tag] = a.handle;
      }
      out.clear();
      return rows;
    }
  };
};

TEST_P(Apart, WhatSharesNothingIsDecidedAsIfAlone) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    for (const Batching batching : {Batching::kOne, Batching::kFill, Batching::kDeadline}) {
      std::mt19937 random(seed);
      const auto pick = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random()) % below; };
      const Options options{.policy = GetParam(), .max_queued = 20, .batching = batching};
      Side together(options);
      std::array<Side, 2> alone{Side(options), Side(options)};
      std::array<std::vector<std::pair<RuntimeId, RuntimeId>>, 2> runtimes;  // together, alone
      for (VariantId v = 0; v < 2; ++v) {
        for (const std::int32_t length : {64, 512}) {
          if (GetParam() == Policy::kUniform && length == 64) continue;
          RuntimeSpec spec = runtime_of(v, length + v, 100 + length, 4);
          const RuntimeId shared = together.scheduler.add_runtime(spec);
          spec.variant = 0;
          runtimes.at(v).emplace_back(shared, alone.at(v).scheduler.add_runtime(spec));
        }
      }
      TimeNs now = 0;
      // From the first time limit on the books of all instances are kept: on both sides from the start.
      const Arrival first{.length = 1, .deadline = 1000};
      for (Side* side : {&together, &alone[0], &alone[1]}) {
        const Admitted admitted = side->scheduler.arrive(1'000'000, first, now, side->out);
        ASSERT_TRUE(side->scheduler.cancel(admitted.handle, 1'000'000, now, side->out));
      }
      // Ties go to the lower id, and ids are reused: all come before the first one goes, so that their order is the
      // same.
      std::uint32_t workers = 0;
      std::map<std::uint32_t, VariantId> worker_of;
      std::map<Tag, VariantId> running;
      Tag tags = 0;
      for (int step = 0; step < 1500; ++step) {
        now += pick(40);
        VariantId v = static_cast<VariantId>(pick(2));
        const auto both = [&](auto call) {
          call(together, true);
          call(alone.at(v), false);
        };
        const std::uint32_t what = pick(10);
        if (workers < 8) {
          const auto runtime = runtimes.at(v).at(pick(static_cast<std::uint32_t>(runtimes.at(v).size())));
          const std::uint32_t number = workers++;
          const auto limit = static_cast<std::int32_t>(1 + pick(2));
          worker_of[number] = v;
          both([&](Side& side, bool shared) {
            // The id is the smallest one free: known before the actions that name it.
            InstanceId id = 0;
            while (side.scheduler.present(id)) ++id;
            side.number[id] = number;
            side.id[number] = side.scheduler.join(shared ? runtime.first : runtime.second, limit, now, side.out);
            ASSERT_EQ(side.id[number], id);
          });
        } else if (what < 2 && step % 50 == 0 && worker_of.size() > 2) {
          const auto at = std::next(worker_of.begin(), pick(static_cast<std::uint32_t>(worker_of.size())));
          v = at->second;
          const std::uint32_t number = at->first;
          worker_of.erase(at);
          both([&](Side& side, bool) { side.scheduler.leave(side.id.at(number), now, side.out); });
        } else if (what < 6) {
          const Tag tag = tags++;
          const TimeNs due = pick(2) == 0 ? kNever : now + pick(3000);
          const TimeNs deadline = pick(2) == 0 ? kNever : now + 1 + pick(5000);
          const auto length = static_cast<std::int32_t>(1 + pick(512));
          both([&](Side& side, bool shared) {
            const Admitted admitted = side.scheduler.arrive(
                tag, {.length = length, .due = due, .deadline = deadline, .variant = shared ? v : VariantId{0}}, now,
                side.out);
            side.handle[tag] = admitted.handle;
          });
          ASSERT_EQ(together.handle[tag] == kNone, alone.at(v).handle[tag] == kNone) << tag;
        } else if (what < 9 && !running.empty()) {
          const auto at = std::next(running.begin(), pick(static_cast<std::uint32_t>(running.size())));
          v = at->second;
          const Tag tag = at->first;
          running.erase(at);
          both(
              [&](Side& side, bool) { side.scheduler.finish(side.handle.at(tag), Verdict::kAnswered, now, side.out); });
        } else {
          together.scheduler.expire(now, together.out);
          for (Side& side : alone) side.scheduler.expire(now, side.out);
        }
        // Of both variants, each in its order.
        std::array<std::vector<Row>, 2> seen, expected;
        for (VariantId side = 0; side < 2; ++side) expected.at(side) = alone.at(side).take();
        std::map<Tag, VariantId> of;
        for (VariantId side = 0; side < 2; ++side) {
          for (const Row& row : expected.at(side)) of[row.tag] = side;
        }
        for (const Row& row : together.take()) {
          ASSERT_TRUE(of.contains(row.tag)) << "only together: " << row.tag;
          seen.at(of.at(row.tag)).push_back(row);
        }
        ASSERT_EQ(seen, expected) << "seed " << seed << " step " << step;
        for (VariantId side = 0; side < 2; ++side) {
          for (const Row& row : expected.at(side)) {
            if (row.kind == ActionKind::kStart) running[row.tag] = side;
            if (row.kind != ActionKind::kLost) continue;
            running.erase(row.tag);
            together.scheduler.abandon(together.handle.at(row.tag));
            alone.at(side).scheduler.abandon(alone.at(side).handle.at(row.tag));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Apart,
                         ::testing::Values(Policy::kRs, Policy::kIlb, Policy::kIg, Policy::kInfaas, Policy::kUniform,
                                           Policy::kEft, Policy::kLate),
                         [](const auto& test) { return std::string(policy_name(test.param)); });

}  // namespace
}  // namespace arlo::dispatch
