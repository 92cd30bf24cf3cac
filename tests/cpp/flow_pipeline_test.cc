// Journeys through pipelines: how roots end, who gets which variant, and what is dropped.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "flow_pipeline_fixture.h"

namespace arlo::flow::pipeline {
namespace {

Spec chain() {
  Spec spec;
  spec.stages = {{{variant(0, .9, kMs)}}, {{variant(1, .8, kMs)}}};
  spec.edges = {{0, 1, {2}, 0}};
  return spec;
}

TEST(Pipeline, ARootEndsWhenTheLastOfItsVisitsHas) {
  Rig rig(chain());
  const auto detect = rig.join(0);
  const auto classify = rig.join(1);
  rig.arrive();
  rig.now = kMs;
  rig.finish(detect, {2});
  EXPECT_EQ(rig.of(Step::Kind::kEnter).size(), 3U);
  EXPECT_EQ(rig.of(Step::Kind::kEnter)[2].index, 1);
  EXPECT_TRUE(rig.of(Step::Kind::kEnter)[2].follows);
  rig.finish(classify);
  EXPECT_TRUE(rig.of(Step::Kind::kExit).empty());
  rig.finish(classify);
  ASSERT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  const Step exit = rig.of(Step::Kind::kExit).front();
  EXPECT_EQ(exit.answered, 2);
  EXPECT_FALSE(exit.failed);
  EXPECT_DOUBLE_EQ(exit.accuracy, .72);
  EXPECT_DOUBLE_EQ(exit.served, 1);
  EXPECT_EQ(rig.pipeline->roots(), 0);
}

TEST(Pipeline, ARowWithoutChildrenEndsWithItsAnswer) {
  Rig rig(chain());
  const auto detect = rig.join(0);
  rig.arrive();
  rig.finish(detect, {0});
  ASSERT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  EXPECT_DOUBLE_EQ(rig.of(Step::Kind::kExit).front().accuracy, .9);
}

TEST(Pipeline, TheFirstDropEndsARootAndCancelsTheRest) {
  Spec spec = chain();
  Rig rig(spec);
  const auto detect = rig.join(0);
  const auto classify = rig.join(1);
  rig.arrive(4 * kMs);
  rig.now = 2 * kMs;
  rig.finish(detect, {3});
  rig.now = 4 * kMs;
  rig.expire();  // what waits behind the first one
  ASSERT_EQ(rig.of(Step::Kind::kDrop).size(), 1U);
  EXPECT_EQ(rig.of(Step::Kind::kDrop).front().reason, DropReason::kDeadline);
  ASSERT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  EXPECT_TRUE(rig.of(Step::Kind::kExit).front().failed);
  EXPECT_GE(rig.of(Step::Kind::kCancel).size(), 1U);
  rig.finish(classify);  // what had begun says nothing any more
  EXPECT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
}

TEST(Pipeline, PartialAnswersAreWhatIsThere) {
  Spec spec = chain();
  spec.on_drop = OnDrop::kPartial;
  Rig rig(spec);
  const auto detect = rig.join(0);
  const auto classify = rig.join(1);
  rig.arrive(4 * kMs);
  rig.now = 2 * kMs;
  rig.finish(detect, {3});
  rig.now = 3 * kMs;
  rig.finish(classify);
  rig.now = 4 * kMs;
  if (!rig.running.empty()) rig.finish(classify);
  ASSERT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  const Step exit = rig.of(Step::Kind::kExit).front();
  EXPECT_FALSE(exit.failed);
  EXPECT_GE(exit.dropped, 1);
  EXPECT_EQ(exit.answered + exit.dropped, 3);
  EXPECT_NEAR(exit.served, exit.answered / 3.0, 1e-12);
}

TEST(Pipeline, AClientThatGoesEndsItsRoot) {
  Rig rig(chain());
  rig.join(0);
  const RootId first = rig.arrive();
  rig.arrive();
  rig.pipeline->cancel(first, rig.now);
  rig.walk();
  EXPECT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
  EXPECT_EQ(rig.pipeline->roots(), 1);
  rig.pipeline->cancel(first, rig.now);
  rig.walk();
  EXPECT_EQ(rig.of(Step::Kind::kExit).size(), 1U);
}

// SPEC 6.2, Reroute: what the quickest backup may take is the time of the routed variant less the overrun.
class Rerouted : public ::testing::Test {
 protected:
  // Times of stage 1 in ms: routed, then the backups; the root overruns its first stage by `over` ms.
  Step run(std::vector<std::pair<double, double>> times_and_accuracies, int over) {
    Spec spec;
    spec.router = Router::kPlan;
    spec.drop = Drop::kReroute;
    spec.stages = {{{variant(0, 1, 10 * kMs)}}, {}};
    Plan plan;
    plan.demand = 1;
    plan.share = {1};
    plan.rate = {100};
    plan.budget = {10 * kMs};
    plan.time = {10 * kMs};
    for (std::size_t i = 0; i < times_and_accuracies.size(); ++i) {
      const auto [ms, accuracy] = times_and_accuracies[i];
      const auto time = static_cast<TimeNs>(ms * kMs);
      spec.stages[1].variants.push_back(variant(static_cast<std::uint16_t>(i + 1), accuracy, time));
      plan.share.push_back(i == 0 ? 1 : 0);
      plan.rate.push_back(i == 0 ? 1 : 50);
      plan.budget.push_back(kMs * 1000);
      plan.time.push_back(time);
    }
    spec.edges = {{0, 1, {1}, 0}};
    Rig rig(spec);
    const auto first = rig.join(0);
    for (std::size_t i = 0; i < times_and_accuracies.size(); ++i) rig.join(i + 1);
    rig.pipeline->apply(plan, 0);
    rig.now = 200 * kMs;
    rig.pipeline->look(rig.now);
    rig.arrive();
    rig.now += (10 + over) * kMs;
    rig.finish(first, {1});
    return rig.steps.back().kind == Step::Kind::kEnter ? rig.steps.back() : rig.of(Step::Kind::kDrop).front();
  }
};

TEST_F(Rerouted, ToABackupThatIsQuickEnough) {
  const Step to = run({{50, 1}, {25, .9}}, 20);
  EXPECT_EQ(to.variant, 2);
  EXPECT_EQ(to.from, 0);
}
TEST_F(Rerouted, NotToOneThatIsNot) {
  EXPECT_EQ(run({{50, 1}, {31, .9}}, 20).reason, DropReason::kBudget);
  EXPECT_EQ(run({{50, 1}, {31, .9}}, 20).kind, Step::Kind::kDrop);
}
TEST_F(Rerouted, IsDroppedWhereNoneIs) {
  EXPECT_EQ(run({{50, 1}, {12.5, .9}, {13, .9}}, 40).kind, Step::Kind::kDrop);
  EXPECT_EQ(run({{50, 1}, {12.5, .9}, {10, .8}}, 40).variant, 3);  // 50 - 40
}
TEST_F(Rerouted, ToTheMostAccurateOfSeveral) { EXPECT_EQ(run({{50, 1}, {20, .9}, {25, .95}}, 20).variant, 3); }
TEST_F(Rerouted, NotWhereItIsInTime) { EXPECT_EQ(run({{50, 1}, {20, .9}}, 0).variant, 1); }

TEST(Price, EscalatesWhereTheGainIsWorthIt) {
  Spec spec;
  spec.stages = {{{variant(0, .90, 100 * kMs), variant(1, .95, 200 * kMs)}}};
  for (const double price : {.4, .6}) {
    Rig rig(spec);
    rig.join(0);
    rig.join(1);
    rig.pipeline->apply({.price = price}, 0);
    rig.arrive();
    EXPECT_EQ(rig.steps.front().variant, price < .5 ? 1 : 0);
  }
}

// A tenth of a second more for .05: worth it up to .5 a second, of price and energy together.
TEST(Price, EnergyIsPaidBesideThePrice) {
  const auto taken = [](double price, double first, double second, double utility = 1) {
    Spec spec;
    spec.stages = {{{variant(0, .90, 100 * kMs), variant(1, .95, 200 * kMs)}}};
    spec.stages[0].variants[0].energy = first;
    spec.stages[0].variants[1].energy = second;
    Rig rig(spec);
    rig.join(0);
    rig.join(1);
    rig.pipeline->apply({.price = price}, 0);
    EXPECT_DOUBLE_EQ(rig.pipeline->price(1), price);  // what is told is that of capacity
    rig.arrive(kNever, utility);
    return rig.steps.front().variant;
  };
  EXPECT_EQ(taken(.3, .1, .1), 1);
  EXPECT_EQ(taken(.3, .3, .3), 0);
  EXPECT_EQ(taken(.3, .3, .3, 2), 1);  // of twice the utility
  EXPECT_EQ(taken(.3, 0, .2), 0);      // .03 + 0 and .06 + .04
  EXPECT_EQ(taken(.6, .2, 0), 1);      // .06 + .02 and .12: the slow one draws nothing
}

// What a row of its own length costs, not the mean of all: of random variants of two lengths each the one that is worth
// most to it, worked out again here.
TEST(Price, ARowPaysForItsOwnLength) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> even(0, 1);
  int differ = 0;  // from what the mean says
  for (int trial = 0; trial < 200; ++trial) {
    dispatch::Scheduler scheduler({.policy = dispatch::Policy::kLate, .max_queued = 1 << 20});
    dispatch::Actions out;
    Spec spec;
    spec.stages.emplace_back();
    std::vector<std::array<TimeNs, 2>> times;
    const auto variants = static_cast<std::uint16_t>(2 + random() % 3);
    for (std::uint16_t v = 0; v < variants; ++v) {
      const auto small = static_cast<TimeNs>((1 + 20 * even(random)) * kMs);
      times.push_back({small, small + static_cast<TimeNs>(100 * even(random) * kMs)});
      std::vector<dispatch::RuntimeId> runtimes;
      for (const std::size_t i : {0U, 1U}) {
        const std::int32_t length = i == 0 ? 64 : 512;
        runtimes.push_back(scheduler.add_runtime({.max_length = length,
                                                  .max_batch = 1,
                                                  .capacity = 100,
                                                  .latency = {{length, 1, times[v][i]}},
                                                  .variant = v}));
      }
      scheduler.join(scheduler.add_bundle(runtimes), 1, 0, out);
      const double mean = static_cast<double>(times[v][0] + times[v][1]) / 2e9;
      const double energy = trial % 2 == 0 ? 0 : 10 * even(random);
      spec.stages[0].variants.push_back(
          {.id = v, .accuracy = even(random), .least = times[v][0], .work = mean, .energy = energy});
    }
    Pipeline pipeline(spec, scheduler);
    pipeline.apply({.price = 20 * even(random)}, 0);
    for (int row = 0; row < 20; ++row) {
      const auto length = static_cast<std::int32_t>(1 + random() % 512);
      const double utility = 2 * even(random);
      pipeline.arrive({.length = length, .utility = utility}, 0);
      Step step;
      ASSERT_TRUE(pipeline.next(0, step));
      std::array<std::uint16_t, 2> best = {0, 0};  // by its own time, and by the mean
      for (const bool mean : {false, true}) {
        double most = -1e300;
        for (const VariantSpec& v : spec.stages[0].variants) {
          const double cost = mean ? v.work : static_cast<double>(times[v.id][length > 64 ? 1 : 0]) / 1e9;
          const double worth = utility * v.accuracy - (pipeline.price(v.id) + v.energy) * cost;
          if (worth <= most) continue;
          most = worth;
          best[mean ? 1 : 0] = v.id;
        }
      }
      EXPECT_EQ(step.variant, best[0]) << trial << ": " << length << " tokens";
      differ += best[0] != best[1] ? 1 : 0;
    }
  }
  EXPECT_GT(differ, 200);
}

// The value of a node against all ways through the tree behind it.
TEST(Price, ValuesAreThoseOfTheBestWay) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> even(0, 1);
  for (int trial = 0; trial < 300; ++trial) {
    Spec spec;
    const int stages = 1 + static_cast<int>(random() % 4);
    std::uint16_t id = 0;
    for (int s = 0; s < stages; ++s) {
      spec.stages.emplace_back();
      for (std::size_t v = 0; v < 1 + random() % 3; ++v) {
        spec.stages.back().variants.push_back(variant(id++, even(random), 1 + static_cast<TimeNs>(even(random) * 1e9)));
        if (trial % 2 != 0) spec.stages.back().variants.back().energy = even(random);
      }
      if (s == 0) continue;
      const auto from = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(s));
      spec.edges.push_back({from, s, {}, 0});
      for (std::size_t v = 0; v < spec.stages[static_cast<std::size_t>(from)].variants.size(); ++v) {
        spec.edges.back().factor.push_back(3 * even(random));
      }
    }
    const Tree tree(spec);
    std::vector<double> price;
    price.reserve(static_cast<std::size_t>(tree.variants()));
    for (int v = 0; v < tree.variants(); ++v) price.push_back(even(random));
    Values values(tree);
    values.update(price);
    const auto plain = [&](auto&& self, Node node, int s, double k) -> double {
      const auto v = tree.variant_of(node, s);
      double value = -(price[static_cast<std::size_t>(v)] + tree.variant(v).energy) * tree.variant(v).work;
      if (tree.stage(s).leaf()) return value + k * tree.accuracy(node);
      for (const auto& out : tree.stage(s).out) {
        const double factor = tree.stage(out.to).factor[static_cast<std::size_t>(tree.variant_in_stage(node, s))];
        const double part = std::min(factor, 1.0);
        value += (1 - part) * out.weight * k * tree.accuracy(node);
        if (factor == 0) continue;
        double best = -1e300;
        for (Node n = tree.block(node, out.to);
             n < tree.block(node, out.to) + static_cast<Node>(tree.stage(out.to).variants); ++n) {
          best = std::max(best, self(self, n, out.to, k * out.weight * part / factor));
        }
        value += factor * best;
      }
      return value;
    };
    for (Node n = 0; n < static_cast<Node>(tree.stage(0).variants); ++n) {
      for (const double k : {0.0, .1, 1.0, 5.0}) EXPECT_NEAR(values.of(n, k), plain(plain, n, 0, k), 1e-9);
    }
  }
}

// SPEC 6.2: A: a1 (acc 1, q 10, r 2), a2 (.8, 40, r 1); B: b1 (1, 20), b2 (.9, 80).
Spec toy(Router router) {
  Spec spec;
  spec.router = router;
  spec.stages = {{{variant(0, 1, 100 * kMs), variant(1, .8, 25 * kMs)}},
                 {{variant(2, 1, 50 * kMs), variant(3, .9, 12'500'000)}}};
  spec.edges = {{0, 1, {2, 1}, 0}};
  return spec;
}

TEST(Shares, MostAccurateFirst) {
  const Spec spec = toy(Router::kMaf);
  const Tree tree(spec);
  Shares shares(tree);
  const std::vector<double> capacity = {10, 40, 20, 80};
  shares.by_accuracy({.demand = 40}, capacity);
  const std::vector<double> expected = {.25, .75, 1, 0, 0, 1};  // a1, a2, a1b1, a1b2, a2b1, a2b2
  double accuracy = 0;
  for (Node n = 0; n < 6; ++n) EXPECT_NEAR(shares.part(n), expected[n], 1e-12) << n;
  for (Node n = 2; n < 6; ++n) accuracy += shares.part((n - 2) / 2) * shares.part(n) * tree.accuracy(n);
  EXPECT_NEAR(accuracy, .79, 1e-12);
  EXPECT_NEAR(shares.left(1), 10, 1e-9);
  EXPECT_NEAR(shares.left(3), 50, 1e-9);
  EXPECT_FALSE(shares.overloaded());
  shares.by_accuracy({.demand = 100}, capacity);
  EXPECT_TRUE(shares.overloaded());
}

TEST(Shares, APlanIsFollowedAsFarAsWhatIsThereGoes) {
  const Spec spec = toy(Router::kPlan);
  const Tree tree(spec);
  Shares shares(tree);
  Plan plan{.demand = 40, .share = {.25, .75, 0, .25, .5, .25}};  // the best routing of 6.2
  shares.by_plan(plan, std::vector<double>{10, 40, 20, 80});
  EXPECT_NEAR(shares.part(4), 2.0 / 3, 1e-12);
  EXPECT_NEAR(shares.part(3), 1, 1e-12);
  EXPECT_FALSE(shares.overloaded());
  shares.by_plan(plan, std::vector<double>{10, 40, 10, 80});  // half of b1 has gone
  EXPECT_NEAR(shares.part(4), 1.0 / 3, 1e-12);
  EXPECT_FALSE(shares.overloaded());
}

TEST(Shares, TurnsKeepToTheTable) {
  const Spec spec = toy(Router::kPlan);
  const Tree tree(spec);
  Shares shares(tree);
  shares.by_plan({.demand = 40, .share = {.25, .75, 0, 1, 1, 0}}, std::vector<double>{10, 40, 100, 100});
  std::vector<int> got(2);
  for (int i = 1; i <= 400; ++i) {
    ++got[shares.next(0, 2)];
    EXPECT_NEAR(got[0], .25 * i, 1);
  }
}

TEST(Slack, AVisitGoesToWhatCanStillBeOnTime) {
  Spec spec;
  spec.router = Router::kPlan;
  spec.stages = {{{variant(0, 1, 100 * kMs), variant(1, .8, 10 * kMs)}}};
  Rig rig(spec);
  rig.join(0);
  rig.join(1);
  Plan plan;
  plan.share = {1, 0};
  plan.demand = 1;
  rig.pipeline->apply(plan, 0);
  for (int i = 0; i < 5; ++i) rig.arrive(120 * kMs);
  const auto entered = rig.of(Step::Kind::kEnter);
  ASSERT_EQ(entered.size(), 5U);
  EXPECT_EQ(entered[0].variant, 0);
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(entered[i].variant, 1);
    EXPECT_EQ(entered[i].from, 0);
  }
  EXPECT_TRUE(rig.of(Step::Kind::kDrop).empty());
}

TEST(Pipeline, ARootTakesNoVariantButThoseItMay) {
  for (const Router router : {Router::kPrice, Router::kPlan, Router::kMaf}) {
    Spec spec;
    spec.router = router;
    spec.stages = {{{variant(0, 1, 100 * kMs), variant(1, .8, 10 * kMs)}}};
    Rig rig(spec);
    rig.join(0);
    rig.join(1);
    for (const std::uint64_t bits : {2, 1, 2}) {
      const auto before = rig.of(Step::Kind::kEnter).size();
      rig.arrive(kNever, 1, 0, bits);
      const auto entered = rig.of(Step::Kind::kEnter);
      ASSERT_EQ(entered.size(), before + 1);
      EXPECT_EQ(entered.back().variant, bits - 1);
      EXPECT_EQ(entered.back().from, -1);
    }
  }
}

TEST(Pipeline, BadSpecsAndPlansAreRefused) {
  Spec spec = chain();
  spec.edges[0].factor = {1, 2};
  EXPECT_THROW(validate(spec), std::invalid_argument);
  spec = chain();
  spec.stages[1].variants[0].id = 0;
  EXPECT_THROW(validate(spec), std::invalid_argument);
  spec = chain();
  spec.edges.push_back({0, 1, {1}, 0});
  EXPECT_THROW(validate(spec), std::invalid_argument);
  for (const double energy : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    spec = chain();
    spec.stages[0].variants[0].energy = energy;
    EXPECT_THROW(validate(spec), std::invalid_argument);
  }
  EXPECT_THROW(validate({.share = {1}}, chain()), std::invalid_argument);
  EXPECT_THROW(validate({.price = -1}, chain()), std::invalid_argument);
}

}  // namespace
}  // namespace arlo::flow::pipeline
