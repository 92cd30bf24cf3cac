// The decisions of a policy: the order of instances within a group, and the group whose best instance takes a request.
// The multi-level queue keeps the order, the scheduler keeps the requests.
#pragma once

#include <memory>

#include "dispatch/multi_level_queue.h"
#include "dispatch/request.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

class Binding;
struct Parts;

class Rule {
 public:
  virtual ~Rule() = default;

  // Smaller keys come first; below kNobody. Equal keys: the lower instance id.
  [[nodiscard]] virtual Key key(const Instance& x) const = 0;

  // The group whose head takes a request of this ideal level and length; queue.groups() when none does.
  [[nodiscard]] virtual GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t length,
                                        TimeNs now) = 0;

  // How requests wait under it: bound on arrival by default.
  [[nodiscard]] virtual std::unique_ptr<Binding> make_binding(const Parts& parts);
};

}  // namespace arlo::dispatch
