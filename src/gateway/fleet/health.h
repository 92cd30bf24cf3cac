// Checks whether the runtimes of an instance are ready on its worker: one ModelReady call each, until one is not.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fault.h"
#include "gateway/fleet/instance.h"
#include "gateway/fleet/lane.h"

namespace arlo::gateway {

// Receives the result of a check; `fault`: why the result is unknown.
class HealthListener {
 public:
  virtual void health_done(const std::shared_ptr<Instance>& instance, const MaybeFault& fault, bool ready) = 0;

 protected:
  ~HealthListener() = default;
};

// Starts a check without waiting: the listener is called on the lane's thread. Any thread.
void check_health(HealthListener& listener, const std::shared_ptr<Instance>& instance, std::uint32_t timeout_ms,
                  Lane& lane);

}  // namespace arlo::gateway
