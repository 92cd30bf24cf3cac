// The states of a request and of an instance, under early binding (ilb) unless said otherwise.
#include <stdexcept>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

using Starts = std::vector<Start>;

TEST(Life, AFinishStartsWhatWaitsInOrder) {
  Rig rig(Policy::kIlb);
  rig.level(128);
  const RequestHandle first = rig.arrive(10);
  const RequestHandle second = rig.arrive(10);
  EXPECT_EQ(rig.last.admission, Admission::kQueued);
  EXPECT_EQ(rig.scheduler.state(second), RequestState::kWaiting);
  rig.arrive(10);
  EXPECT_EQ(rig.starts(), (Starts{{0, 0}}));
  rig.scheduler.finish(first, Verdict::kAnswered, 0, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{1, 0}}));
  EXPECT_EQ(rig.scheduler.state(first), RequestState::kGone);
  rig.scheduler.finish(second, Verdict::kAnswered, 0, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{2, 0}}));
  EXPECT_EQ(rig.scheduler.queued(), 0);
  EXPECT_EQ(rig.scheduler.in_flight(), 1);
}

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

TEST(Life, HandlesAndIdsAreUsedAgain) {
  Rig rig(Policy::kIlb);
  const InstanceId first = rig.level(128, 3);
  const RequestHandle h = rig.arrive(10);
  rig.scheduler.finish(h, Verdict::kAnswered, 0, rig.out);
  EXPECT_EQ(rig.arrive(10), h);
  EXPECT_TRUE(rig.scheduler.drain(first + 2, 0, rig.out));
  rig.scheduler.leave(first + 1, 0, rig.out);
  EXPECT_EQ(rig.scheduler.join(0, 1, 0, rig.out), first + 1);  // the smallest one free
  EXPECT_EQ(rig.scheduler.join(0, 1, 0, rig.out), first + 2);
  EXPECT_EQ(rig.scheduler.instances(), 3);
}

TEST(Drain, BoundRequestsMoveAndStartedOnesStay) {
  Rig rig(Policy::kIlb);
  const InstanceId a = rig.level(128, 2);
  const RequestHandle on_a = rig.arrive(10);
  const RequestHandle on_b = rig.arrive(10);
  rig.arrive(10);  // bound to a
  rig.look();
  EXPECT_FALSE(rig.scheduler.drain(a, 0, rig.out));
  EXPECT_FALSE(rig.scheduler.drain(a, 0, rig.out));  // again: nothing more to do
  EXPECT_EQ(rig.scheduler.view(a).state, InstanceState::kDraining);
  EXPECT_EQ(rig.scheduler.view(a).queued, 0);
  EXPECT_EQ(rig.scheduler.view(a + 1).queued, 1);
  rig.scheduler.finish(on_a, Verdict::kAnswered, 0, rig.out);
  EXPECT_FALSE(rig.scheduler.present(a));
  EXPECT_TRUE(rig.look().empty());
  rig.scheduler.finish(on_b, Verdict::kAnswered, 0, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{2, a + 1}}));
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

TEST(Leave, LostRequestsAreRetriedAheadInOrderOfAdmission) {
  Rig rig(Policy::kIlb);
  const InstanceId a = rig.level(128, 2, 100, 2);
  for (int i = 0; i < 6; ++i) rig.arrive(10);  // a: 0, 2, then 4; b: 1, 3, then 5
  rig.look();
  rig.scheduler.leave(a, 0, rig.out);
  ASSERT_EQ(rig.out.size(), 2U);
  const RequestHandle zero = rig.out[0].handle;
  const RequestHandle two = rig.out[1].handle;
  EXPECT_EQ(rig.out[1].tag, 2U);
  rig.look();
  EXPECT_EQ(rig.scheduler.retry(two, a, 0, rig.out), Admission::kQueued);
  EXPECT_EQ(rig.scheduler.retry(zero, a, 0, rig.out), Admission::kQueued);
  EXPECT_EQ(rig.scheduler.queued(), 4);
  std::vector<Tag> order;
  std::vector<RequestHandle> running{1, 3};  // handles are dense: b's two
  while (!running.empty()) {
    rig.scheduler.finish(running.front(), Verdict::kAnswered, 0, rig.out);
    running.erase(running.begin());
    for (const Action& action : rig.look()) {
      order.push_back(action.tag);
      running.push_back(action.handle);
    }
  }
  EXPECT_EQ(order, (std::vector<Tag>{0, 2, 4, 5}));
}

TEST(Leave, ALostRequestMayFinishOrBeAbandoned) {
  Rig rig(Policy::kIlb);
  const InstanceId only = rig.level(128, 1, 100, 2);
  const RequestHandle a = rig.arrive(10);
  const RequestHandle b = rig.arrive(10);
  rig.scheduler.leave(only, 0, rig.out);
  EXPECT_FALSE(rig.scheduler.cancel(a, 0, 0, rig.out));
  rig.scheduler.finish(a, Verdict::kAnswered, 0, rig.out);
  rig.scheduler.abandon(b);
  EXPECT_EQ(rig.scheduler.state(a), RequestState::kGone);
  EXPECT_EQ(rig.scheduler.state(b), RequestState::kGone);
  EXPECT_EQ(rig.scheduler.in_flight(), 0);
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

TEST(Retry, TheInstanceItLeavesStartsTheNextOne) {
  Rig rig(Policy::kIlb);
  const InstanceId a = rig.level(128, 2);
  const RequestHandle first = rig.arrive(10);
  rig.arrive(10);
  rig.arrive(10);  // bound to a
  rig.look();
  EXPECT_EQ(rig.scheduler.retry(first, a, 0, rig.out), Admission::kQueued);
  EXPECT_EQ(rig.starts(), (Starts{{2, a}}));
  EXPECT_EQ(rig.scheduler.view(a + 1).queued, 1);
}

TEST(Retry, IsNotRefusedForAFullQueueButEndsAtItsDeadline) {
  Rig rig(Options{.policy = Policy::kIlb, .max_queued = 0});
  const InstanceId a = rig.level(128, 2);
  const RequestHandle h = rig.arrive(10, 3 * kMs);
  rig.arrive(10);
  rig.arrive(10);
  EXPECT_EQ(rig.last.admission, Admission::kFull);
  EXPECT_EQ(rig.scheduler.retry(h, a, 1, rig.out), Admission::kQueued);
  EXPECT_EQ(rig.scheduler.queued(), 1);
  EXPECT_EQ(rig.scheduler.next_deadline(), 3 * kMs);
  rig.look();
  rig.scheduler.expire(3 * kMs, rig.out);
  ASSERT_EQ(rig.out.size(), 1U);
  EXPECT_EQ(rig.out[0].kind, ActionKind::kExpired);

  const RequestHandle dead = rig.arrive(10, 3 * kMs);
  rig.look();
  EXPECT_EQ(rig.scheduler.retry(dead, kNone, 4 * kMs, rig.out), Admission::kQueued);
  ASSERT_EQ(rig.out.size(), 1U);
  EXPECT_EQ(rig.out[0].kind, ActionKind::kExpired);
  EXPECT_EQ(rig.scheduler.state(dead), RequestState::kGone);
}

TEST(Expire, EarliestFirstAndOnlyThoseThatWait) {
  Rig rig(Policy::kIlb);
  rig.level(128);
  rig.arrive(10, kMs);  // starts
  rig.arrive(10, 9 * kMs);
  rig.arrive(10, 5 * kMs);
  rig.arrive(10, 5 * kMs);
  rig.arrive(10);
  rig.look();
  EXPECT_EQ(rig.scheduler.next_deadline(), 5 * kMs);
  rig.scheduler.expire(4 * kMs, rig.out);
  EXPECT_TRUE(rig.out.empty());
  rig.scheduler.expire(9 * kMs, rig.out);
  std::vector<Tag> tags;
  for (const Action& a : rig.look()) {
    EXPECT_EQ(a.kind, ActionKind::kExpired);
    EXPECT_EQ(a.instance, kNone);
    tags.push_back(a.tag);
  }
  EXPECT_EQ(tags, (std::vector<Tag>{2, 3, 1}));
  EXPECT_EQ(rig.scheduler.queued(), 1);
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

TEST(Parked, JoinBindsWhatItFitsInOrderOverAllLevels) {
  Rig rig(Policy::kRs);
  rig.level(128, 0);
  rig.level(256, 0);
  rig.level(512, 0);
  for (const std::int32_t length : {90, 200, 400, 100}) rig.arrive(length);
  EXPECT_EQ(rig.scheduler.parked(), 4);
  const InstanceId id = rig.scheduler.join(1, 3, 0, rig.out);
  EXPECT_EQ(rig.starts(), (Starts{{0, id}, {1, id}, {3, id}}));
  EXPECT_EQ(rig.scheduler.parked(), 1);
}

TEST(Parked, CountsForTheBoundOfTheQueue) {
  Rig rig(Options{.policy = Policy::kRs, .max_queued = 1});
  rig.level(128, 0);
  rig.arrive(10);
  EXPECT_EQ(rig.last.admission, Admission::kParked);
  EXPECT_EQ(rig.arrive(10), kNone);
  EXPECT_EQ(rig.last.admission, Admission::kFull);
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
