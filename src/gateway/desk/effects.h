// What a decision of the router asks for, to be done once its lock is released. Inside the router only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dispatch/scheduler.h"
#include "gateway/desk/router.h"
#include "gateway/fleet/upstream.h"

namespace arlo::gateway {

struct Router::Effects {
  dispatch::Actions actions;  // of the scheduler, not yet applied
  std::vector<UpstreamCall*> starts;
  std::vector<UpstreamCall*> cancels;  // each holds a reference
  std::vector<Row*> ended;
  std::vector<std::shared_ptr<Instance>> checks;
  std::vector<std::function<void()>> calls;
};

}  // namespace arlo::gateway
