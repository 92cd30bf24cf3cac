// The states of a request and of an instance: misuse, and late, which has no plain twin in tests/property.
#include <stdexcept>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

using Starts = std::vector<Start>;

TEST(Life, LengthsOutsideTheRuntimesAreRefused) {
  Rig rig(Policy::kIlb);
  EXPECT_EQ(rig.arrive(10), kNone);  // no runtime at all
  EXPECT_EQ(rig.last.admission, Admission::kTooLong);
  rig.level(128);
  for (const std::int32_t length : {-5, 0, 129, kMaxLength, std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_EQ(rig.arrive(length), kNone);
    EXPECT_EQ(rig.last.admission, Admission::kTooLong);
    EXPECT_EQ(rig.scheduler.ideal_level(length), -1);
    EXPECT_FALSE(rig.scheduler.fits_any(length));
  }
  EXPECT_EQ(rig.scheduler.ideal_level(1), 0);
  EXPECT_EQ(rig.scheduler.ideal_level(128), 0);
}

TEST(Life, MisuseChangesNothing) {
  Rig rig(Policy::kIlb);
  rig.level(128);
  const RequestHandle running = rig.arrive(10);
  const RequestHandle waiting = rig.arrive(10);
  rig.look();
  Scheduler& s = rig.scheduler;
  s.finish(waiting, Verdict::kAnswered, 0, rig.out);
  s.finish(99, Verdict::kAnswered, 0, rig.out);
  s.finish(kNone, Verdict::kAnswered, 0, rig.out);
  s.abandon(running);
  s.abandon(waiting);
  EXPECT_FALSE(s.cancel(running, 0, 0, rig.out));
  EXPECT_FALSE(s.cancel(kNone, 0, 0, rig.out));
  EXPECT_EQ(s.retry(waiting, kNone, 0, rig.out), Admission::kTooLong);
  EXPECT_EQ(s.retry(kNone, kNone, 0, rig.out), Admission::kTooLong);
  s.leave(7, 0, rig.out);
  EXPECT_TRUE(s.drain(kNone, 0, rig.out));
  EXPECT_FALSE(s.present(7));
  EXPECT_EQ(s.view(7).in_flight, 0);
  EXPECT_EQ(s.cost(9, 10), 0);
  EXPECT_EQ(s.level_max_length(3), 0);
  EXPECT_THROW(s.join(9, 1, 0, rig.out), std::invalid_argument);
  EXPECT_THROW(s.join(0, 0, 0, rig.out), std::invalid_argument);
  EXPECT_TRUE(rig.look().empty());
  EXPECT_EQ(s.in_flight(), 1);
  EXPECT_EQ(s.queued(), 1);
}

TEST(Life, BadRuntimesAreRefusedAndLeaveNothingBehind) {
  Rig rig(Policy::kIlb);
  for (const RuntimeSpec& spec : {static_runtime(0), static_runtime(kMaxLength + 1), static_runtime(8, 0),
                                  RuntimeSpec{.max_length = 8, .max_batch = 0, .capacity = 1, .latency = {{8, 1, 1}}},
                                  RuntimeSpec{.max_length = 8, .capacity = 1, .latency = {}}}) {
    EXPECT_THROW(rig.scheduler.add_runtime(spec), std::invalid_argument);
  }
  EXPECT_EQ(rig.scheduler.levels(), 0);
  EXPECT_EQ(rig.scheduler.add_runtime(static_runtime(8)), 0U);
}

TEST(Drain, WhatNobodyElseFitsStaysAndNewOnesPark) {
  for (const Policy policy : {Policy::kRs, Policy::kEft, Policy::kLate}) {
    Rig rig(policy);
    rig.level(128);
    const InstanceId last = rig.level(512);
    const RequestHandle running = rig.arrive(400);
    const RequestHandle waiting = rig.arrive(400);
    EXPECT_FALSE(rig.scheduler.drain(last, 0, rig.out));
    EXPECT_FALSE(rig.scheduler.fits_any(400));
    EXPECT_EQ(rig.scheduler.view(last).queued, 1);
    EXPECT_EQ(rig.scheduler.parked(), 0);
    rig.arrive(400);
    EXPECT_EQ(rig.last.admission, Admission::kParked);
    EXPECT_EQ(rig.scheduler.parked(), 1);
    rig.look();
    rig.scheduler.finish(running, Verdict::kAnswered, 0, rig.out);
    EXPECT_EQ(rig.starts(), (Starts{{1, last}}));
    rig.scheduler.finish(waiting, Verdict::kAnswered, 0, rig.out);
    EXPECT_FALSE(rig.scheduler.present(last));
    EXPECT_EQ(rig.scheduler.join(1, 1, 0, rig.out), last);
    EXPECT_EQ(rig.starts(), (Starts{{2, last}}));
  }
}

TEST(Drain, LeaveOfADrainingInstanceParksWhatItKept) {
  for (const Policy policy : {Policy::kRs, Policy::kEft, Policy::kLate}) {
    Rig rig(policy);
    const InstanceId only = rig.level(512);
    const RequestHandle running = rig.arrive(400);
    const RequestHandle waiting = rig.arrive(400);
    rig.scheduler.drain(only, 0, rig.out);
    rig.look();
    rig.scheduler.leave(only, 0, rig.out);
    ASSERT_EQ(rig.out.size(), 1U);
    EXPECT_EQ(rig.out[0].kind, ActionKind::kLost);
    EXPECT_EQ(rig.out[0].instance, only);
    EXPECT_EQ(rig.scheduler.state(running), RequestState::kLost);
    EXPECT_EQ(rig.scheduler.state(waiting), RequestState::kWaiting);
    EXPECT_EQ(rig.scheduler.parked(), 1);
    rig.look();
    EXPECT_EQ(rig.scheduler.retry(running, only, 0, rig.out), Admission::kParked);
    rig.scheduler.join(0, 2, 0, rig.out);
    EXPECT_EQ(rig.starts(), (Starts{{0, only}, {1, only}}));
  }
}

TEST(Retry, KeepsOffTheInstanceWhereAnotherFits) {
  for (const Policy policy : {Policy::kRs, Policy::kIlb, Policy::kIg, Policy::kInfaas, Policy::kEft, Policy::kLate}) {
    Rig rig(policy);
    const InstanceId a = rig.level(128);
    const InstanceId b = rig.level(512);
    const RequestHandle h = rig.arrive(10);
    EXPECT_EQ(rig.starts(), (Starts{{0, a}}));
    EXPECT_EQ(rig.scheduler.retry(h, a, 0, rig.out), Admission::kStarted);
    EXPECT_EQ(rig.starts(), (Starts{{0, b}}));
    EXPECT_EQ(rig.scheduler.view(a).in_flight, 0);
    rig.scheduler.leave(a, 0, rig.out);
    EXPECT_EQ(rig.scheduler.retry(h, b, 0, rig.out), Admission::kStarted);
    EXPECT_EQ(rig.starts(), (Starts{{0, b}}));  // nobody else fits
  }
}

TEST(Expire, WhatIsFoundDeadIsSkipped) {
  for (const Policy policy : {Policy::kIlb, Policy::kEft, Policy::kLate}) {
    Rig rig(policy);
    const InstanceId only = rig.level(128);
    const RequestHandle running = rig.arrive(10);
    rig.arrive(10, 2 * kMs);
    rig.arrive(10, 4 * kMs);
    rig.look();
    rig.scheduler.finish(running, Verdict::kAnswered, 2 * kMs, rig.out);
    ASSERT_EQ(rig.out.size(), 2U);
    EXPECT_EQ(rig.out[0].kind, ActionKind::kExpired);
    EXPECT_EQ(rig.out[1].kind, ActionKind::kStart);
    EXPECT_EQ(rig.out[1].tag, 2U);
    EXPECT_EQ(rig.outstanding(only), 1);
  }
}

// Whoever cancels one may not have read yet that it has expired.
TEST(Cancel, LeavesWhoHasTheHandleNow) {
  Rig rig(Policy::kLate);
  rig.level(128);
  rig.arrive(10);
  const RequestHandle expired = rig.arrive(10, 5 * kMs);
  rig.now = 5 * kMs;
  rig.scheduler.expire(rig.now, rig.out);
  ASSERT_EQ(rig.scheduler.state(expired), RequestState::kGone);
  const RequestHandle next = rig.arrive(10);
  ASSERT_EQ(next, expired);
  EXPECT_FALSE(rig.scheduler.cancel(expired, 1, rig.now, rig.out));
  EXPECT_EQ(rig.scheduler.state(next), RequestState::kWaiting);
  EXPECT_TRUE(rig.scheduler.cancel(next, 2, rig.now, rig.out));
}

TEST(Cancel, InEveryState) {
  for (const Policy policy : {Policy::kRs, Policy::kEft, Policy::kLate}) {
    Rig rig(policy);
    rig.level(128);
    rig.level(512, 0);
    const RequestHandle running = rig.arrive(10);
    const RequestHandle waiting = rig.arrive(10);
    const RequestHandle parked = rig.arrive(400);
    EXPECT_FALSE(rig.scheduler.cancel(running, 0, 0, rig.out));
    EXPECT_TRUE(rig.scheduler.cancel(waiting, 1, 0, rig.out));
    EXPECT_FALSE(rig.scheduler.cancel(waiting, 1, 0, rig.out));
    EXPECT_TRUE(rig.scheduler.cancel(parked, 2, 0, rig.out));
    EXPECT_EQ(rig.scheduler.queued(), 0);
    rig.look();
    rig.scheduler.finish(running, Verdict::kAnswered, 0, rig.out);
    EXPECT_TRUE(rig.look().empty());
  }
}

TEST(Levels, ANewOneShiftsThoseAboveAndTakesItsParkedRequests) {
  for (const Policy policy : {Policy::kRs, Policy::kEft, Policy::kLate}) {
    Rig rig(policy);
    const InstanceId low = rig.level(64);
    rig.level(512, 0);
    rig.arrive(100);
    rig.arrive(300);
    rig.arrive(90);
    EXPECT_EQ(rig.scheduler.ideal_level(100), 1);
    const RuntimeId middle = rig.scheduler.add_runtime(static_runtime(128));
    EXPECT_EQ(rig.scheduler.levels(), 3);
    EXPECT_EQ(rig.scheduler.level_max_length(1), 128);
    EXPECT_EQ(rig.scheduler.ideal_level(100), 1);
    EXPECT_EQ(rig.scheduler.ideal_level(300), 2);
    const InstanceId id = rig.scheduler.join(middle, 2, 0, rig.out);
    EXPECT_EQ(rig.starts(), (Starts{{0, id}, {2, id}}));
    EXPECT_EQ(rig.scheduler.view(id).level, 1);
    rig.scheduler.add_runtime(static_runtime(32));
    EXPECT_EQ(rig.scheduler.view(id).level, 2);
    EXPECT_EQ(rig.scheduler.view(low).level, 1);
    EXPECT_EQ(rig.starts_on(60), low);
    EXPECT_EQ(rig.out.back().level, 1);
  }
}

TEST(Life, AMovedSchedulerGoesOn) {
  Rig rig(Policy::kLate);
  rig.level(128);
  const RequestHandle first = rig.arrive(10);
  rig.arrive(10);
  rig.look();
  Scheduler moved = std::move(rig.scheduler);
  moved.finish(first, Verdict::kAnswered, 0, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{1, 0}}));
}

}  // namespace
}  // namespace arlo::dispatch
