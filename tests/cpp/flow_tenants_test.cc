// Shares of tenants, and the way that audits take.
#include <gtest/gtest.h>

#include "flow/pipeline/tenants.h"
#include "flow/rules/audit.h"
#include "flow/rules/guard.h"
#include "flow_pipeline_fixture.h"

namespace arlo::flow::pipeline {
namespace {

// 100 ms in which the tenants take these worker-seconds, and rows wait for so long of 80 ms.
void look(Tenants& tenants, TimeNs& now, std::vector<double> seconds, TimeNs waited) {
  for (std::size_t t = 0; t < seconds.size(); ++t) {
    if (seconds[t] > 0) tenants.took(t, seconds[t], waited, 80 * kMs);
  }
  now += Tenants::kLook;
  tenants.look(now);
}

TEST(Tenants, WhoTakesMoreThanItsSharePaysWhileThereIsTooLittle) {
  Tenants tenants({1, 3, 1});
  TimeNs now = 0;
  for (int i = 0; i < 10; ++i) look(tenants, now, {.6, .4, 0}, 5 * kMs);
  EXPECT_EQ(tenants.price(0), 1) << "there is enough";
  for (int i = 0; i < 10; ++i) look(tenants, now, {.2, .8, 0}, 40 * kMs);
  for (const std::size_t t : {0U, 1U, 2U}) EXPECT_EQ(tenants.price(t), t == 0 ? tenants.price(0) : 1);
  for (int i = 0; i < 40; ++i) look(tenants, now, {.6, .4, 0}, 40 * kMs);
  EXPECT_EQ(tenants.price(0), Tenants::kMostPrice);
  EXPECT_EQ(tenants.price(1), 1) << "within its share, of 3 / 4";
  EXPECT_EQ(tenants.patience(0), .25);
  EXPECT_EQ(tenants.patience(1), 1);
  for (int i = 0; i < 40; ++i) look(tenants, now, {.6, .4, 0}, 0);
  EXPECT_EQ(tenants.price(0), 1) << "there is enough again";
}

TEST(Tenants, WhatIsGivenUpIsTooLittleToo) {
  Tenants tenants({1, 1});
  TimeNs now = 0;
  for (int i = 0; i < 20; ++i) {
    tenants.given_up(1);
    look(tenants, now, {.9, .1}, 0);
  }
  EXPECT_GT(tenants.price(0), 10);
  EXPECT_EQ(tenants.price(1), 1);
}

TEST(Tenants, WhoIsAloneHasAll) {
  Tenants tenants({1, 9});
  TimeNs now = 0;
  const auto alone = [&] {
    tenants.took(0, 1, 80 * kMs, 80 * kMs);
    now += Tenants::kLook;
    tenants.look(now);
  };
  for (int i = 0; i < 50; ++i) alone();
  EXPECT_EQ(tenants.price(0), 1);
  tenants.took(1, .001, 80 * kMs, 80 * kMs);  // who asks for little has its share, too
  alone();
  EXPECT_GT(tenants.price(0), 1);
  for (int i = 0; i < 50; ++i) alone();
  EXPECT_EQ(tenants.price(0), 1) << "it has not asked for long";
}

TEST(BestWay, IsThatOfTheMostAccuratePaths) {
  // By its own accuracy the first variant of the entry is the best one; behind the second one more can be had.
  Spec spec;
  spec.stages = {{{variant(0, .9, kMs), variant(1, .8, kMs)}}, {{variant(2, .7, kMs), variant(3, .6, kMs)}}};
  spec.edges = {{0, 1, {1, 1}, 0}};
  spec.accuracy = {.9, .8, .70, .60, .75, .85};
  const auto way = best_way(Tree(spec));
  EXPECT_EQ(way.variants, (std::vector<std::int32_t>{1, 1}));
  EXPECT_EQ(way.may_take, 0b1010U);
  EXPECT_EQ(way.accuracy, .85);
  EXPECT_EQ(way.rows, 1 + 1);
  Rig rig(spec);
  for (const std::size_t v : {0U, 1U, 2U, 3U}) rig.join(v);
  rig.arrive(100 * kMs, 1, way.accuracy, way.may_take);
  EXPECT_EQ(rig.running.size(), 1U);
  EXPECT_TRUE(rig.running.contains(1)) << "the second instance holds it";
}

TEST(BestWay, TakesTheWholeLineOfABody) {
  Spec spec;
  spec.stages = {{{variant(0, .7, kMs), variant(1, .9, 2 * kMs)}, 0}};
  const auto way = best_way(Tree(spec));
  EXPECT_EQ(way.may_take, 0b11U);
  EXPECT_EQ(way.accuracy, .9);
}

TEST(Audit, RowsMayDifferByTheirOwnChance) {
  DisagreementTest calm;
  DisagreementTest worse;
  for (std::uint64_t row = 0; row < 3'000; ++row) {
    const double may = row % 2 == 0 ? .02 : .3;
    const double u = hash01(2, row, 0);
    calm.add(u < may, may);
    worse.add(u < may + .1, may);
  }
  EXPECT_FALSE(calm.alarm());
  EXPECT_TRUE(worse.alarm());
  DisagreementTest none;
  for (int row = 0; row < 1'000; ++row) none.add(true, 1);
  EXPECT_FALSE(none.alarm()) << "rows that may always differ say nothing";
}

}  // namespace
}  // namespace arlo::flow::pipeline
