// Every call of a pipeline or a cascade is answered once, and nothing is left of it, whatever comes when
// (desk_fixture.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "desk_fixture.h"
#include "gateway/log.h"

namespace arlo::gateway {
namespace {

// More with DESK_SEEDS=n, from DESK_FIRST on.
std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* said = std::getenv(name);
  return said == nullptr ? otherwise : std::strtoull(said, nullptr, 10);
}

TEST(DeskFlows, EveryCallIsAnsweredOnceAndNothingIsLeft) {
  set_log_level(parse_log_level("error"));
  std::uint64_t well = 0;
  std::uint64_t badly = 0;
  std::uint64_t audited = 0;
  std::uint64_t fewer = 0;   // tokens, compared with all of them
  std::uint64_t joined = 0;  // rows of several
  std::uint64_t over = 0;    // rows of tenants that pay more
  const auto first = number("DESK_FIRST", 0);
  for (std::uint64_t seed = first; seed < first + number("DESK_SEEDS", 100); ++seed) {
    DeskRig rig(seed);
    for (int i = 0; i < 400; ++i) rig.step();
    rig.end();
    std::uint64_t rows = 0;
    std::uint64_t unknown = 0;
    for (const auto& call : rig.calls) {
      rows += call->rows.size();
      if (call->fault.code == Code::kInvalidArgument) unknown += call->rows.size();
      EXPECT_EQ(call->completed, 1) << seed;
      EXPECT_EQ(call->open_rows, 0U) << seed;
      ++(call->fault.code == Code::kOk ? well : badly);
      if (call->fault.code != Code::kOk) continue;
      for (const Row& row : call->rows) EXPECT_FALSE(row.flow->answers.empty()) << seed;
    }
    EXPECT_EQ(rig.late_starts, 0U) << seed;
    EXPECT_FALSE(rig.own_open()) << seed;
    EXPECT_EQ(rig.at_workers(), 0U) << seed;
    EXPECT_EQ(rig.scheduler().queued(), 0) << seed;
    EXPECT_EQ(rig.scheduler().in_flight(), 0) << seed;
    const v1::Stats stats = rig.stats();
    for (const auto& worth : stats.worth()) rows -= worth.in_time() + worth.late() + worth.evicted() + worth.failed();
    EXPECT_EQ(rows, unknown) << seed;  // each has ended once, but those that name no tenant who is there
    audited += stats.audit().rows();
    if (stats.by_tenant_size() > 0) {
      std::uint64_t of_tenants = 0;
      for (const auto& worth : stats.by_tenant()) {
        of_tenants += worth.in_time() + worth.late() + worth.evicted() + worth.failed();
        over += worth.price() > 1 ? 1 : 0;
      }
      std::uint64_t of_classes = 0;
      for (const auto& worth : stats.worth()) {
        of_classes += worth.in_time() + worth.late() + worth.evicted() + worth.failed();
      }
      EXPECT_EQ(of_tenants, of_classes) << seed;
    }
    for (const auto& stage : stats.pipeline()) {
      std::uint64_t answered = 0;
      std::uint64_t ended = 0;
      for (const auto& variant : stage.variants()) {
        answered += variant.answered();
        ended += variant.ended();
        fewer += variant.shadow_rows();
      }
      EXPECT_EQ(answered, stage.answered()) << seed;
      EXPECT_EQ(ended, stage.ends()) << seed;
      EXPECT_LE(stage.answered(), stage.visits()) << seed;
      if (stage.stage() == rig.joined()) joined += stage.answered();
      EXPECT_LE(stage.ends(), stage.answered()) << seed;
    }
  }
  EXPECT_GT(well, 1000U);
  EXPECT_GT(badly, 1000U);
  EXPECT_GT(audited, 30U);
  EXPECT_GT(fewer, 20U);
  EXPECT_GT(over, 0U);
  EXPECT_GT(joined, 100U);
}

TEST(DeskCascades, EveryCallIsAnsweredOnceAndNothingIsLeft) {
  set_log_level(parse_log_level("error"));
  std::uint64_t well = 0;
  std::uint64_t badly = 0;
  std::uint64_t audited = 0;
  const auto first = number("DESK_FIRST", 0);
  for (std::uint64_t seed = first; seed < first + number("DESK_SEEDS", 100); ++seed) {
    DeskRig rig(seed, true);
    for (int i = 0; i < 400; ++i) rig.step();
    rig.end();
    for (const auto& call : rig.calls) {
      EXPECT_EQ(call->completed, 1) << seed;
      EXPECT_EQ(call->open_rows, 0U) << seed;
      ++(call->fault.code == Code::kOk ? well : badly);
      if (call->fault.code != Code::kOk) continue;
      for (const Row& row : call->rows) EXPECT_TRUE(row.journey->answered()) << seed;
    }
    const v1::Stats stats = rig.stats();
    for (const auto& stage : stats.stages()) EXPECT_LE(stage.shadow_rows(), stage.visits()) << seed;
    audited += stats.shadows().rows();
    EXPECT_FALSE(rig.own_open()) << seed;
    EXPECT_EQ(rig.late_starts, 0U) << seed;
    EXPECT_EQ(rig.at_workers(), 0U) << seed;
    EXPECT_EQ(rig.scheduler().queued(), 0) << seed;
    EXPECT_EQ(rig.scheduler().in_flight(), 0) << seed;
  }
  EXPECT_GT(well, 1000U);
  EXPECT_GT(badly, 1000U);
  EXPECT_GT(audited, 30U);
}

}  // namespace
}  // namespace arlo::gateway
