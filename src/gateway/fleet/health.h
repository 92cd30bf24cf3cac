// Whether the runtimes of an instance are ready on its worker: a ModelReady call for each, until one is not.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>

#include "gateway/fleet/instance.h"

namespace arlo::gateway {

// Who is told what came of a check.
class HealthListener {
 public:
  virtual void health_done(const std::shared_ptr<Instance>& instance, const grpc::Status& status, bool ready) = 0;

 protected:
  ~HealthListener() = default;
};

// Asks, without waiting: the listener is told on the thread of `queue`.
void check_health(HealthListener& listener, const std::shared_ptr<Instance>& instance, std::uint32_t timeout_ms,
                  grpc::CompletionQueue& queue);

}  // namespace arlo::gateway
