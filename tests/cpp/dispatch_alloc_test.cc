// Nothing is allocated per request once the scheduler has grown to its load.
#include <random>

#include "allocations.h"
#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

// Arrivals with deadlines that wait, start, expire and finish, at a load that keeps the queues filled.
std::size_t allocated_in(Policy policy) {
  Scheduler scheduler(Options{.policy = policy, .max_queued = 500});
  Actions out;
  out.reserve(1024);
  for (const std::int32_t length : {128, 256, 512}) {
    if (policy == Policy::kUniform && length != 512) continue;
    const RuntimeId runtime = scheduler.add_runtime(static_runtime(length, 20, length * 100));
    for (int i = 0; i < 10; ++i) scheduler.join(runtime, 2, 0, out);
  }
  std::mt19937 random(7);
  std::vector<RequestHandle> running;
  running.reserve(1024);
  const auto take = [&] {
    for (const Action& a : out) {
      if (a.kind == ActionKind::kStart) running.push_back(a.handle);
    }
    out.clear();
  };
  std::size_t before = 0;
  TimeNs now = 0;
  for (int i = 0; i < 90'000; ++i) {
    if (i == 60'000) before = allocated();
    now += 1000;
    const Arrival arrival{.length = static_cast<std::int32_t>(1 + random() % 512),
                          .due = now + 100'000,
                          .deadline = now + 300'000,
                          .client = random() % 7};
    scheduler.arrive(0, arrival, now, out);
    take();
    if (!running.empty() && random() % 8 != 0) {
      std::swap(running[random() % running.size()], running.back());
      const RequestHandle h = running.back();
      running.pop_back();
      scheduler.finish(h, Verdict::kAnswered, now, out);
      take();
    }
    if (scheduler.next_deadline() <= now) scheduler.expire(now, out);
    take();
  }
  return allocated() - before;
}

TEST(Allocations, NoneInSteadyState) {
  for (const Policy policy :
       {Policy::kRs, Policy::kIlb, Policy::kIg, Policy::kInfaas, Policy::kUniform, Policy::kEft, Policy::kLate}) {
    EXPECT_EQ(allocated_in(policy), 0U) << policy_name(policy);
  }
}

}  // namespace
}  // namespace arlo::dispatch
