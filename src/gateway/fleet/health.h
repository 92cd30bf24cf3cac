// Whether the runtimes of an instance are ready on its worker: a ModelReady call for each, until one is not.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fault.h"
#include "gateway/fleet/instance.h"
#include "gateway/fleet/lane.h"

namespace arlo::gateway {

// Who is told what came of a check: `fault`: why nothing is known.
class HealthListener {
 public:
  virtual void health_done(const std::shared_ptr<Instance>& instance, const MaybeFault& fault, bool ready) = 0;

 protected:
  ~HealthListener() = default;
};

// Asks, without waiting: the listener is told on the lane's thread. Any thread.
void check_health(HealthListener& listener, const std::shared_ptr<Instance>& instance, std::uint32_t timeout_ms,
                  Lane& lane);

}  // namespace arlo::gateway
