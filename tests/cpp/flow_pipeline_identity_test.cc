// A pipeline of one stage with one variant is the scheduler: the same events lead to the same actions. And nothing is
// lost or allocated on long random journeys.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "allocations.h"
#include "flow_pipeline_fixture.h"

namespace arlo::flow::pipeline {
namespace {

using dispatch::Action;
using dispatch::ActionKind;
using dispatch::Scheduler;

bool same(const Action& a, const Action& b) {
  return a.kind == b.kind && a.handle == b.handle && a.tag == b.tag && a.instance == b.instance && a.level == b.level &&
         a.demoted == b.demoted && a.runtime == b.runtime && a.batch == b.batch;
}

void one_stage(dispatch::Batching batching, std::uint64_t seed) {
  const dispatch::Options options{.policy = dispatch::Policy::kLate, .max_queued = 60, .batching = batching};
  Scheduler plain(options);
  Scheduler under(options);
  dispatch::Actions of_plain;
  dispatch::Actions of_under;
  for (Scheduler* s : {&plain, &under}) {
    for (const std::int32_t length : {64, 512}) {
      const auto runtime = s->add_runtime({.max_length = length,
                                           .max_batch = 4,
                                           .capacity = 20,
                                           .latency = {{length, 1, length * 1000}, {length, 4, length * 1500}}});
      for (int i = 0; i < 3; ++i) s->join(runtime, 2, 0, s == &plain ? of_plain : of_under);
    }
  }
  Spec spec;
  spec.stages = {{{variant(0, .9, 64'000)}}};
  Pipeline pipeline(spec, under);
  std::mt19937_64 random(seed);
  TimeNs now = 0;
  std::vector<VisitId> visit;
  std::vector<dispatch::RequestHandle> running;  // the same in both
  std::vector<std::uint64_t> tag_of;
  std::uint64_t tags = 0;
  std::size_t ended = 0;
  std::size_t refused = 0;
  std::size_t seen = 0;
  const auto walk = [&] {
    for (Step step; pipeline.next(now, step);) {
      if (step.kind == Step::Kind::kExit) ++ended;
      if (step.kind != Step::Kind::kEnter) continue;
      const auto admitted = under.arrive(step.tag,
                                         {.length = step.length,
                                          .due = step.due,
                                          .deadline = step.deadline,
                                          .variant = step.variant,
                                          .follows = step.follows},
                                         now, of_under);
      visit[step.tag] = step.visit;
      if (admitted.handle == kNone) {
        ++refused;
        pipeline.refused(step.visit, DropReason::kDeadline, now);
      }
    }
  };
  for (int i = 0; i < 20'000; ++i) {
    now += static_cast<TimeNs>(random() % 60'000);
    if (random() % 3 == 0 && !running.empty()) {
      const std::size_t at = random() % running.size();
      const auto handle = running[at];
      const auto tag = tag_of[at];
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
      tag_of.erase(tag_of.begin() + static_cast<std::ptrdiff_t>(at));
      plain.finish(handle, dispatch::Verdict::kAnswered, now, of_plain);
      under.finish(handle, dispatch::Verdict::kAnswered, now, of_under);
      pipeline.finish(visit[tag], {}, now);
    } else if (random() % 20 == 0) {
      plain.expire(now, of_plain);
      under.expire(now, of_under);
    } else {
      const auto length = static_cast<std::int32_t>(1 + random() % 512);
      const TimeNs due = now + 1'000'000;
      const TimeNs deadline = random() % 2 == 0 ? due : due + 2'000'000;
      visit.push_back(kNone);
      plain.arrive(tags, {.length = length, .due = due, .deadline = deadline}, now, of_plain);
      pipeline.arrive({.tag = tags++, .length = length, .due = due, .deadline = deadline}, now);
    }
    walk();
    ASSERT_EQ(of_plain.size(), of_under.size()) << i;
    for (; seen < of_plain.size(); ++seen) {
      ASSERT_TRUE(same(of_plain[seen], of_under[seen])) << i;
      const Action& a = of_under[seen];
      if (a.kind == ActionKind::kStart) {
        running.push_back(a.handle);
        tag_of.push_back(a.tag);
      } else {
        pipeline.refused(visit[a.tag], DropReason::kDeadline, now);
        walk();
      }
    }
  }
  EXPECT_GT(refused, 100U);
  EXPECT_GT(ended, 5000U);
  EXPECT_EQ(static_cast<std::size_t>(pipeline.roots()), tags - ended);
}

TEST(OneStage, IsTheScheduler) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    one_stage(dispatch::Batching::kOne, seed);
    one_stage(dispatch::Batching::kDeadline, seed);
  }
}

using RandomJourneys = Journeys<std::mt19937_64>;

TEST(Journeys, EveryRootEndsOnce) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    RandomJourneys journeys{std::mt19937_64(seed)};
    for (int i = 0; i < 600; ++i) {
      journeys.step();
      if (i % 50 == 0) {
        EXPECT_TRUE(journeys.sound()) << seed << ": " << i;
      }
    }
    EXPECT_TRUE(journeys.end()) << seed << ": " << journeys.rig->pipeline->roots() << " roots do not end";
    EXPECT_TRUE(journeys.sound()) << seed << ": " << journeys.rig->started << " started, " << journeys.rig->finished
                                  << " finished, " << journeys.rig->lost << " lost, " << journeys.rig->too_late
                                  << " too late, " << journeys.exited.size() << " of " << journeys.arrived << " ended";
  }
}

TEST(Journeys, TheSameEventsLeadToTheSameSteps) {
  RandomJourneys one{std::mt19937_64(5)};
  RandomJourneys other{std::mt19937_64(5)};
  for (int i = 0; i < 2000; ++i) {
    one.step();
    other.step();
  }
  ASSERT_EQ(one.rig->steps.size(), other.rig->steps.size());
  for (std::size_t i = 0; i < one.rig->steps.size(); ++i) {
    const Step& a = one.rig->steps[i];
    const Step& b = other.rig->steps[i];
    EXPECT_TRUE(a.kind == b.kind && a.visit == b.visit && a.root == b.root && a.node == b.node && a.due == b.due);
  }
}

TEST(Journeys, NothingIsAllocatedInSteadyState) {
  Spec spec;
  spec.stages = {{{variant(0, .8, kMs), variant(1, .9, 2 * kMs)}}, {{variant(2, .8, kMs), variant(3, .9, 2 * kMs)}}};
  spec.edges = {{0, 1, {2, 2}, 0}};
  Scheduler scheduler({.policy = dispatch::Policy::kLate, .max_queued = 200});
  dispatch::Actions out;
  out.reserve(4096);
  for (const StageSpec& stage : spec.stages) {
    for (const VariantSpec& v : stage.variants) {
      const auto runtime =
          scheduler.add_runtime({.max_length = 64, .capacity = 20, .latency = {{64, 1, v.least}}, .variant = v.id});
      for (int i = 0; i < 3; ++i) scheduler.join(runtime, 2, 0, out);
    }
  }
  Pipeline pipeline(spec, scheduler);
  std::mt19937_64 random(3);
  struct Run {
    dispatch::RequestHandle handle;
    std::uint64_t slot;
  };
  std::vector<Run> running;
  running.reserve(4096);
  std::vector<VisitId> visit_of(4096, kNone);  // by the scheduler's tag
  std::vector<dispatch::RequestHandle> handle_of(4096, kNone);
  std::vector<std::uint64_t> slot_of(1 << 16);  // by visit
  std::vector<std::uint64_t> free;
  free.reserve(4096);
  for (std::uint64_t i = 0; i < 4096; ++i) free.push_back(i);
  std::size_t before = 0;
  TimeNs now = 0;
  const std::array<Children, 1> two = {{{.edge = 0, .length = 10, .count = 2}}};
  for (int i = 0; i < 120'000; ++i) {
    if (i == 90'000) before = allocated();
    now += 250'000;
    if (running.size() > 8) {
      const std::size_t at = random() % running.size();
      const Run run = running[at];
      running[at] = running.back();
      running.pop_back();
      const VisitId visit = visit_of[run.slot];
      free.push_back(run.slot);
      scheduler.finish(run.handle, dispatch::Verdict::kAnswered, now, out);
      if (visit != kNone)
        pipeline.finish(visit, pipeline.stage(visit) == 0 ? std::span(two) : std::span<const Children>{}, now);
    } else {
      pipeline.arrive({.length = 10, .due = now + 40 * kMs, .deadline = now + 40 * kMs}, now);
    }
    for (;;) {
      for (Step step; pipeline.next(now, step);) {
        if (step.kind == Step::Kind::kEnter) {
          const std::uint64_t slot = free.back();
          free.pop_back();
          const auto admitted = scheduler.arrive(slot,
                                                 {.length = step.length,
                                                  .due = step.due,
                                                  .deadline = step.deadline,
                                                  .variant = step.variant,
                                                  .follows = step.follows},
                                                 now, out);
          visit_of[slot] = step.visit;
          handle_of[slot] = admitted.handle;
          slot_of[step.visit] = slot;
          if (admitted.handle != kNone) continue;
          free.push_back(slot);
          pipeline.refused(step.visit, DropReason::kDeadline, now);
        } else if (step.kind == Step::Kind::kCancel) {
          const std::uint64_t slot = slot_of[step.visit];
          visit_of[slot] = kNone;
          if (scheduler.cancel(handle_of[slot], slot, now, out)) free.push_back(slot);
        }
      }
      if (out.empty()) break;
      const Action a = out.front();
      out.erase(out.begin());
      if (a.kind == ActionKind::kStart) {
        running.push_back({a.handle, a.tag});
      } else {
        free.push_back(a.tag);
        if (visit_of[a.tag] != kNone) pipeline.refused(visit_of[a.tag], DropReason::kDeadline, now);
      }
    }
  }
  EXPECT_EQ(allocated() - before, 0U);
}

}  // namespace
}  // namespace arlo::flow::pipeline
