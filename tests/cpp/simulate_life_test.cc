// The end of a simulation. Workers that come, go, fail and slow down are compared with a plain
// simulation in tests/property.
#include <stdexcept>

#include "simulate_fixture.h"

namespace arlo::simulate {
namespace {

TEST(SimulateLife, TimeEnds) {
  Rig rig(options());
  rig.engine.add_worker(rig.runtime(64, 3'600'000'000'000), 0);
  rig.engine.slow(0, 1e6);
  for (int i = 0; i < 5; ++i) rig.arrive(0);
  rig.engine.finish();
  EXPECT_EQ(rig.engine.now(), TimeNs{1} << 61);
  EXPECT_EQ(rig.of(4).outcome, Outcome::kLate);
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
  EXPECT_EQ(rig.of(1).latency, 10);
}

}  // namespace
}  // namespace arlo::simulate
