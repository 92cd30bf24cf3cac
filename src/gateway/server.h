// Assembles the gateway: router, data port, admin port, HTTP.
#pragma once

#include <arlo/v1/config.pb.h>

namespace arlo::gateway {

// Serves until SIGTERM or SIGINT, then drains: for drain_delay_ms it only reports not ready, then new requests are
// refused, and running ones get drain_timeout_ms. A second signal ends at once. Returns the exit code. Throws
// std::invalid_argument when it cannot start (a port in use, an unreadable certificate).
int serve(const v1::GatewayConfig& config);

}  // namespace arlo::gateway
