// Rows that have an answer already: what becomes of them where no further one comes, and whether it pays to go on.
#include <gtest/gtest.h>

#include <array>

#include "flow_pipeline_fixture.h"

namespace arlo::flow::pipeline {
namespace {

// A small model, and a large one that answers anew.
Spec small_and_large() {
  Spec spec;
  spec.stages = {{{variant(0, .7, kMs)}}, {{variant(1, .9, 10 * kMs)}}};
  spec.edges = {{0, 1, {1}, 0}};
  spec.edges.front().falls_back = true;
  spec.accuracy = {.7, .9};
  spec.follows_load = true;
  return spec;
}

TEST(PipelineExits, TheAnswerBeforeCountsWhereTheNextOneIsLate) {
  Rig rig(small_and_large());
  const auto small = rig.join(0);
  const auto large = rig.join(1);
  rig.arrive(12 * kMs);
  rig.arrive(12 * kMs);
  rig.now = kMs;
  rig.finish(small, {1});
  rig.now = 2 * kMs;
  rig.finish(small, {1});  // the large one is busy until 11 ms
  ASSERT_EQ(rig.of(Step::Kind::kDrop).size(), 1U);
  const Step drop = rig.of(Step::Kind::kDrop).front();
  EXPECT_TRUE(drop.falls_back);
  EXPECT_DOUBLE_EQ(drop.accuracy, .7);
  EXPECT_EQ(drop.reason, DropReason::kDeadline);
  ASSERT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  const Step exit = rig.of(Step::Kind::kExit).front();
  EXPECT_FALSE(exit.failed);
  EXPECT_EQ(exit.answered, 1);
  EXPECT_EQ(exit.dropped, 0);
  EXPECT_DOUBLE_EQ(exit.accuracy, .7);
  rig.now = 11 * kMs;
  rig.finish(large);
  EXPECT_DOUBLE_EQ(rig.of(Step::Kind::kExit)[1].accuracy, .9);
  EXPECT_EQ(rig.pipeline->roots(), 0);
}

TEST(PipelineExits, TheAnswerBeforeCountsWhereTheNextStageIsGone) {
  Rig rig(small_and_large());
  const auto small = rig.join(0);
  rig.arrive(100 * kMs);
  rig.finish(small, {1});
  ASSERT_EQ(rig.of(Step::Kind::kExit).size(), 1U);  // at once: it does not wait for workers
  EXPECT_FALSE(rig.of(Step::Kind::kExit).front().failed);
}

TEST(PipelineExits, NotForAClientWhoWantsMore) {
  Rig rig(small_and_large());
  const auto small = rig.join(0);
  const auto large = rig.join(1);
  rig.arrive(12 * kMs, 1, .8);
  rig.arrive(12 * kMs, 1, .8);
  rig.finish(small, {1});
  rig.now = 2 * kMs;
  rig.finish(small, {1});
  ASSERT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  EXPECT_TRUE(rig.of(Step::Kind::kExit).front().failed);
  rig.finish(large);
  EXPECT_FALSE(rig.of(Step::Kind::kExit)[1].failed);
}

TEST(PipelineExits, AWorkerThatFailsLosesNoAnswer) {
  Rig rig(small_and_large());
  const auto small = rig.join(0);
  const auto large = rig.join(1);
  rig.arrive(100 * kMs);
  rig.finish(small, {1});
  rig.leave(large, false);
  ASSERT_EQ(rig.of(Step::Kind::kDrop).size(), 1U);
  EXPECT_EQ(rig.of(Step::Kind::kDrop).front().reason, DropReason::kFailed);
  EXPECT_FALSE(rig.of(Step::Kind::kExit).front().failed);
}

// Of a visit at the small model: whether one more right answer in so many pays at this price.
bool pays(double price, double gain, double utility = 1, bool planned = false, double energy = 0) {
  Spec spec = small_and_large();
  spec.stages[1].variants[0].energy = energy;
  Rig rig(spec);
  rig.join(0);
  rig.join(1);
  Plan plan;
  plan.price = price;
  rig.pipeline->apply(plan, 0);
  rig.arrive(kNever, utility);
  const VisitId visit = rig.of(Step::Kind::kEnter).front().visit;
  return rig.pipeline->pays(visit, std::array<std::int32_t, 1>{0}, gain, planned);
}

TEST(PipelineExits, GoingOnPaysIfItGainsMoreThanItCosts) {
  // 10 ms at price p cost .01 p: the specification's numbers, a tenth of them.
  EXPECT_TRUE(pays(4, .05));
  EXPECT_FALSE(pays(6, .05));
  EXPECT_TRUE(pays(6, .05, 2));
  EXPECT_FALSE(pays(6, .05, 2, true));  // the plan's threshold is the same for all rows
  EXPECT_FALSE(pays(4, .03, 1, true));
  EXPECT_TRUE(pays(4, .05, 1, true));
  EXPECT_FALSE(pays(4, .05, 1, false, 2));  // .06 with what the large one draws
  EXPECT_FALSE(pays(4, .05, 1, true, 2));
  EXPECT_TRUE(pays(4, .07, 1, true, 2));
  EXPECT_TRUE(pays(4, .05, 2, false, 2));
  EXPECT_FALSE(pays(4, 0));
  EXPECT_FALSE(pays(4, -.1));
}

// Gain .05 is worth 10 ms at price 4, not 20 ms: what a short row and a long one take at the head, whose mean is 15.
// The plan's threshold is that of the mean, .06.
TEST(PipelineExits, ALongRowIsDearer) {
  const Spec spec = small_and_large();
  dispatch::Scheduler scheduler({.policy = dispatch::Policy::kLate});
  dispatch::Actions out;
  std::vector<dispatch::RuntimeId> head;
  const auto add = [&](std::uint16_t v, std::int32_t length, TimeNs time) {
    return scheduler.add_runtime(
        {.max_length = length, .max_batch = 1, .capacity = 100, .latency = {{length, 1, time}}, .variant = v});
  };
  scheduler.join(add(0, 512, kMs), 1, 0, out);
  for (const std::int32_t length : {64, 512}) head.push_back(add(1, length, (length == 64 ? 10 : 20) * kMs));
  scheduler.join(scheduler.add_bundle(head), 1, 0, out);
  Spec mean = spec;
  mean.stages[1].variants[0].work = .015;
  Pipeline pipeline(mean, scheduler);
  pipeline.apply({.price = 4}, 0);
  for (const std::int32_t length : {10, 64, 65, 500}) {
    pipeline.arrive({.length = length}, 0);
    Step step;
    ASSERT_TRUE(pipeline.next(0, step));
    EXPECT_EQ(pipeline.pays(step.visit, std::array<std::int32_t, 1>{0}, .05, false), length <= 64) << length;
    EXPECT_FALSE(pipeline.pays(step.visit, std::array<std::int32_t, 1>{0}, .05, true));
    EXPECT_TRUE(pipeline.pays(step.visit, std::array<std::int32_t, 1>{0}, .07, true));
  }
}

TEST(PipelineExits, TheVariantBehindIsTheOneThatPays) {
  Spec spec = small_and_large();
  spec.stages[1].variants.push_back(variant(2, .8, kMs));
  spec.edges[0].factor = {1};
  spec.accuracy = {.7, .9, .8};
  Rig rig(spec);
  for (std::size_t v = 0; v < 3; ++v) rig.join(v);
  Plan plan;
  plan.price = 20;  // the large one costs .2, the middle one .02
  rig.pipeline->apply(plan, 0);
  rig.arrive(kNever);
  const VisitId visit = rig.of(Step::Kind::kEnter).front().visit;
  // By the middle one a row gains .1 less than by the large one.
  EXPECT_TRUE(rig.pipeline->pays(visit, std::array<std::int32_t, 1>{0}, .13, true));
  EXPECT_FALSE(rig.pipeline->pays(visit, std::array<std::int32_t, 1>{0}, .11, true));
}

TEST(PipelineExits, TheLongerTheLineTheLessPays) {
  Spec spec = small_and_large();
  Rig rig(spec);
  rig.join(0);
  rig.join(1);
  Plan plan;
  plan.price = 1;
  rig.pipeline->apply(plan, 0);
  rig.arrive(100 * kMs);
  const VisitId visit = rig.of(Step::Kind::kEnter).front().visit;
  rig.pipeline->look(rig.now);
  EXPECT_TRUE(rig.pipeline->pays(visit, std::array<std::int32_t, 1>{0}, .02, false));
  for (int i = 0; i < 30; ++i) {
    rig.scheduler.arrive(1000 + static_cast<std::uint64_t>(i), {.length = 10, .variant = 1}, rig.now, rig.actions);
  }
  rig.now += Pipeline::kLook;
  rig.pipeline->look(rig.now);
  EXPECT_FALSE(rig.pipeline->pays(visit, std::array<std::int32_t, 1>{0}, .02, false));
  EXPECT_TRUE(rig.pipeline->pays(visit, std::array<std::int32_t, 1>{0}, .02, true));
}

}  // namespace
}  // namespace arlo::flow::pipeline
