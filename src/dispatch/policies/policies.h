// The policies by name, and what the scheduler knows of them.
#pragma once

#include <memory>

#include "dispatch/rule.h"
#include "dispatch/state.h"

namespace arlo::dispatch {

// late: bound when it starts. See late.cc.
std::unique_ptr<Rule> make_late(State& state);

// The needs of a policy, by which the scheduler distinguishes policies; it knows none by name.
struct PolicyNeeds {
  bool times;       // it weighs execution times: the books of timed.h, and a heap for each runtime
  bool one_length;  // it takes runtimes of one max_length only
};
[[nodiscard]] PolicyNeeds needs_of(Policy policy);
[[nodiscard]] std::unique_ptr<Rule> make_rule(State& state);

}  // namespace arlo::dispatch
