// What a policy decides, and nothing else: the order of instances within a group, and the group whose best instance
// takes a request. The multi-level queue keeps the order, the scheduler keeps the requests.
#pragma once

#include <memory>

#include "dispatch/multi_level_queue.h"
#include "dispatch/request.h"
#include "dispatch/scheduler.h"

namespace arlo::dispatch {

class Binding;
struct Parts;
struct State;

class Rule {
 public:
  virtual ~Rule() = default;

  // Smaller keys come first; below kNobody. Equal keys: the lower instance id.
  [[nodiscard]] virtual Key key(const Instance& x) const = 0;

  // The group whose head takes a request of this ideal level and length; queue.groups() when none does.
  [[nodiscard]] virtual GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t length,
                                        TimeNs now) = 0;

  // How requests wait under it: bound on arrival, unless it says otherwise.
  [[nodiscard]] virtual std::unique_ptr<Binding> make_binding(const Parts& parts);
};

// rs, ilb, ig, uniform and infaas: by the number of outstanding requests. See load_rules.cc.
std::unique_ptr<Rule> make_load_rule(const Options& options);

// eft: by expected finish. See eft.cc.
std::unique_ptr<Rule> make_eft(const RequestSlab& requests);

// late: bound when it starts. See late.cc.
std::unique_ptr<Rule> make_late(const State& state);

// What a policy needs to be told apart by the scheduler, which knows none by name.
struct PolicyNeeds {
  bool times;       // it weighs execution times: the books of timed.h, and a heap for each runtime
  bool one_length;  // it takes runtimes of one max_length only
};
[[nodiscard]] PolicyNeeds needs_of(Policy policy);
[[nodiscard]] std::unique_ptr<Rule> make_rule(const State& state);

}  // namespace arlo::dispatch
