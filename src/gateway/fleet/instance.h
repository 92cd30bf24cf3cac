// One runtime, or a bundle of them, on one worker, as the gateway sees it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "dispatch/scheduler.h"
#include "rewrite/model.h"

namespace arlo::gateway {

struct Instance {
  //   joining --ready--> active --drain--> draining --empty--> (gone, or drained when only drained)
  //                       |  ^
  //                 eject v  | ready, and the worker is done with old batches
  //                     ejected
  enum class State : std::uint8_t { kJoining, kActive, kDraining, kEjected, kDrained };

  std::string id;
  std::string worker_label;
  std::string endpoint;  // the worker's
  struct Member {
    dispatch::RuntimeId id;
    RuntimeInfo runtime;
  };
  std::string runtime;           // name of the runtime or bundle
  std::vector<Member> members;   // by max_length, of all its models
  std::string content;           // serialised instance and runtimes: a change means a new instance
  dispatch::RuntimeId joins_as;  // its only member's, or the bundle's
  std::int32_t inflight_limit = 1;

  // Under the router's lock.
  State state = State::kJoining;
  bool retired = false;                         // no longer in the deployment: gone once drained
  dispatch::InstanceId slot = dispatch::kNone;  // the scheduler's id, while active or draining
  std::uint32_t in_flight = 0;                  // batches holding slots at the worker, also for answered clients
  std::uint32_t left_behind = 0;                // batches at the worker from before its ejection
  std::uint64_t started = 0;
  std::uint64_t failed = 0;
  std::uint64_t answered = 0;
  TimeNs busy_since = 0;
  TimeNs busy_ns = 0;
  TimeNs heard_ns = 0;  // last answer to a row, of any kind
  TimeNs next_check_ns = 0;
  bool checking = false;
  std::uint32_t failed_checks = 0;
  std::uint32_t errors_in_row = 0;     // answers with an error since the last good one
  std::uint32_t blamed_in_row = 0;     // those whose row another instance then answered well
  std::uint32_t ejections_in_row = 0;  // without a good answer in between: each doubles the wait before the next check
  std::uint64_t ejections = 0;
  std::uint64_t answered_at_check = 0;  // `answered` when last checked: answers are evidence of health
  std::string last_error;
  struct Waiter {
    TimeNs deadline_ns;
    std::function<void(bool drained)> done;
  };
  std::vector<Waiter> waiters;  // Drain calls

  // Max length of its longest runtime for a model, in tokens; 0: it holds none.
  [[nodiscard]] std::int32_t max_length(dispatch::VariantId variant) const {
    std::int32_t longest = 0;
    for (const Member& m : members) {
      if (m.runtime.variant == variant) longest = std::max(longest, m.runtime.max_length);
    }
    return longest;
  }
  // The member with this id.
  [[nodiscard]] const RuntimeInfo& member(dispatch::RuntimeId wanted) const {
    const auto found =
        std::find_if(members.begin(), members.end(), [wanted](const Member& m) { return m.id == wanted; });
    return found->runtime;
  }
  [[nodiscard]] bool in_service() const { return state == State::kActive || state == State::kDraining; }
};

}  // namespace arlo::gateway
