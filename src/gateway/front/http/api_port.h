// The HTTP/1.1 ports: the HTTP API for text, on the data port's lanes, where each request becomes an ordinary
// ModelInfer call, and the port for probes and metrics.
#pragma once

#include <arlo/v1/config.pb.h>

#include <memory>
#include <string>

#include "gateway/front/data_service.h"
#include "gateway/front/http/api_connection.h"
#include "gateway/front/port.h"

namespace arlo::gateway {

// Makes the port, whose drained connections close after their pending answer; the service outlives it.
std::unique_ptr<Port> api_port(DataService& service, const ApiLimits& limits, const char* option,
                               const std::string& address, Lanes& lanes);

ApiLimits api_limits(const v1::GatewayConfig& config, std::size_t lanes);

// Serves /metrics (Prometheus), /livez and /readyz from construction to destruction, on a separate lane, so that no
// request delays it. There are few connections, each with some seconds per request; a new one replaces another.
class ProbePort {
 public:
  ProbePort(DataService& service, const std::string& address);
  ~ProbePort() { lanes_.front()->stop(); }
  ProbePort(const ProbePort&) = delete;
  ProbePort& operator=(const ProbePort&) = delete;

  [[nodiscard]] const std::string& address() const { return port_->address(); }

 private:
  Lanes lanes_;
  std::unique_ptr<Port> port_;
};

}  // namespace arlo::gateway
