// grpc.health.v1.Health on the data port: SERVING while the gateway is ready. Needs no token: probes carry none.
#pragma once

#include <health/health.grpc.pb.h>

#include "gateway/desk/models.h"
#include "gateway/front/rpc.h"

namespace arlo::gateway {

using HealthService = grpc::health::v1::Health::AsyncService;

void serve_health(HealthService& service, const Models& models, grpc::ServerCompletionQueue& queue);

}  // namespace arlo::gateway
