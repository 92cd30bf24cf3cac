// What neither the stories of tests/golden/dispatch nor the plain scheduler of tests/property tell of the policies.
#include <stdexcept>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

TEST(Uniform, TakesOneMaxLengthOnly) {
  Rig rig(Policy::kUniform);
  const InstanceId first = rig.level(512, 2);
  EXPECT_EQ(rig.starts_on(10), first);
  EXPECT_EQ(rig.starts_on(500), first + 1);
  EXPECT_THROW(rig.scheduler.add_runtime(static_runtime(256)), std::invalid_argument);
  EXPECT_EQ(rig.scheduler.levels(), 1);
}

// Lateness in the past of the origin: times may be negative.
TEST(Eft, NegativeTimes) {
  Rig rig(Policy::kEft);
  rig.now = -1000 * kMs;
  const InstanceId first = rig.level(128, 2, 100, 9, 2 * kMs);
  EXPECT_EQ(rig.starts_on(10), first);
  EXPECT_EQ(rig.starts_on(10), first + 1);
  EXPECT_EQ(rig.starts_on(10), first);
}

TEST(Options, PolicyNamesGoBothWays) {
  for (const char* name : {"rs", "ilb", "ig", "infaas", "uniform", "eft", "late"}) {
    EXPECT_EQ(policy_name(parse_policy(name)), name);
  }
  EXPECT_THROW(parse_policy("RS"), std::invalid_argument);
}

}  // namespace
}  // namespace arlo::dispatch
