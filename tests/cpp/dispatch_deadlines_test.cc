#include <gtest/gtest.h>

#include "dispatch/lines/deadlines.h"

namespace arlo::dispatch {
namespace {

class DeadlinesTest : public ::testing::Test {
 protected:
  RequestHandle wait(TimeNs deadline) {
    const RequestHandle h = requests.take();
    requests[h].rank = kFirstTry | admissions++;
    requests[h].deadline = deadline;
    again(h);
    return h;
  }
  void again(RequestHandle h) {
    requests[h].state = RequestState::kWaiting;
    deadlines.wait_begins(requests, h);
  }
  void start(RequestHandle h) {
    deadlines.wait_ends(requests, h);
    requests[h].state = RequestState::kStarted;
  }
  void end(RequestHandle h) {
    deadlines.wait_ends(requests, h);
    requests.give_back(h);
  }

  RequestSlab requests;
  Deadlines deadlines;
  std::uint64_t admissions = 0;
};

TEST_F(DeadlinesTest, StaleEntriesAreSweptAndWaitingOnesKept) {
  const RequestHandle kept = wait(1'000'000);
  const RequestHandle running = wait(999'999);
  start(running);
  for (int i = 0; i < 1000; ++i) end(wait(500'000 + i));
  // At most kSweepAbove stale ones are left, so the earliest deadlines are those of the last few.
  EXPECT_GE(deadlines.next(), 500'000 + 1000 - 80);
  again(running);
  EXPECT_EQ(deadlines.pop(requests, 600'000), kNone);
  EXPECT_EQ(deadlines.pop(requests, 1'000'000), running);
  EXPECT_EQ(deadlines.pop(requests, 1'000'000), kept);
  EXPECT_EQ(deadlines.pop(requests, kNever - 1), kNone);
}

TEST_F(DeadlinesTest, TheWaitThatTriggersTheSweepIsNotKept) {
  std::vector<RequestHandle> waiting;
  waiting.reserve(70);
  for (int i = 0; i < 70; ++i) waiting.push_back(wait(10));
  for (const RequestHandle h : waiting) start(h);
  for (const RequestHandle h : waiting) again(h);
  int expired = 0;
  while (deadlines.pop(requests, 10) != kNone) ++expired;
  EXPECT_EQ(expired, 70);
}

}  // namespace
}  // namespace arlo::dispatch
