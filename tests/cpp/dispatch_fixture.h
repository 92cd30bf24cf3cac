// A scheduler with its actions at hand, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "dispatch/scheduler.h"

namespace arlo::dispatch {

inline RuntimeSpec static_runtime(std::int32_t max_length, std::int32_t capacity = 100, TimeNs latency = kMs) {
  return {.max_length = max_length, .capacity = capacity, .latency = {{max_length, 1, latency}}};
}

// One started request: what a kStart says.
struct Start {
  Tag tag;
  InstanceId instance;
  bool operator==(const Start&) const = default;
};

class Rig {
 public:
  explicit Rig(Options options) : scheduler(options) {}
  explicit Rig(Policy policy) : scheduler(Options{.policy = policy}) {}

  // A runtime with `count` instances; the id of the first one.
  InstanceId level(std::int32_t max_length, int count = 1, std::int32_t capacity = 100, std::int32_t limit = 1,
                   TimeNs latency = kMs) {
    const RuntimeId runtime = scheduler.add_runtime(static_runtime(max_length, capacity, latency));
    InstanceId first = kNone;
    for (int i = 0; i < count; ++i) {
      const InstanceId id = scheduler.join(runtime, limit, now, out);
      if (i == 0) first = id;
    }
    return first;
  }

  // Arrives as the next tag, from 0; the handle.
  RequestHandle arrive(std::int32_t length, TimeNs deadline = kNever) {
    last = scheduler.arrive(tags++, {.length = length, .deadline = deadline}, now, out);
    return last.handle;
  }

  // Arrives, has to start, and tells where.
  InstanceId starts_on(std::int32_t length) {
    const std::size_t before = out.size();
    arrive(length);
    EXPECT_EQ(last.admission, Admission::kStarted);
    EXPECT_EQ(out.size(), before + 1);
    return out.back().instance;
  }

  // The actions since the last look.
  Actions look() {
    Actions seen;
    seen.swap(out);
    return seen;
  }

  std::vector<Start> starts() {
    std::vector<Start> seen;
    for (const Action& a : look()) {
      EXPECT_EQ(a.kind, ActionKind::kStart);
      seen.push_back({a.tag, a.instance});
    }
    return seen;
  }

  std::int32_t outstanding(InstanceId id) const {
    const InstanceView view = scheduler.view(id);
    return view.in_flight + view.queued;
  }

  Scheduler scheduler;
  Actions out;
  TimeNs now = 0;
  Tag tags = 0;
  Admitted last;
};

}  // namespace arlo::dispatch
