// The HTTP/1.1 ports: the HTTP API for text, on the data port's lanes, where each request becomes an ordinary
// ModelInfer call, and the port for probes and metrics.
#pragma once

#include <arlo/v1/config.pb.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/front/data_port.h"
#include "gateway/front/data_service.h"
#include "gateway/front/http/api_connection.h"

namespace arlo::gateway {

class ApiPort {
 public:
  // Works like DataPort. `option`: names the address option in errors. Without an address it serves nothing.
  ApiPort(DataService& service, const ApiLimits& limits, const char* option, const std::string& address, Lanes& lanes);
  ~ApiPort();  // the lanes must have stopped
  ApiPort(const ApiPort&) = delete;
  ApiPort& operator=(const ApiPort&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }  // with the real port; empty: none
  // Refuses new connections; existing ones close after their pending answer.
  void drain();
  void close_all();

 private:
  class OnLane;

  Lanes& lanes_;
  std::string address_;
  std::vector<std::unique_ptr<OnLane>> parts_;  // one per lane; the first one listens
  std::size_t next_ = 0;
};

ApiLimits api_limits(const v1::GatewayConfig& config, std::size_t lanes);

// Serves /metrics (Prometheus), /livez and /readyz from construction to destruction, on a separate lane, so that no
// request delays it. There are few connections, each with some seconds per request; a new one replaces another, as in
// ApiPort.
class ProbePort {
 public:
  ProbePort(DataService& service, const std::string& address);
  ~ProbePort() { lanes_.front()->stop(); }
  ProbePort(const ProbePort&) = delete;
  ProbePort& operator=(const ProbePort&) = delete;

  [[nodiscard]] const std::string& address() const { return port_->address(); }

 private:
  Lanes lanes_;
  std::optional<ApiPort> port_;
};

}  // namespace arlo::gateway
