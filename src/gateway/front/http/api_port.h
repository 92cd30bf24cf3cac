// The ports of HTTP/1.1: the HTTP API's, text, on the lanes of the data port, where a request becomes a ModelInfer
// call, and from there on is one; and that for probes and metrics.
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
  // As of DataPort. `option`: that says the address, for errors. Without an address it serves nothing.
  ApiPort(DataService& service, const ApiLimits& limits, const char* option, const std::string& address, Lanes& lanes);
  ~ApiPort();  // the lanes have stopped
  ApiPort(const ApiPort&) = delete;
  ApiPort& operator=(const ApiPort&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }  // with the real port; empty: none
  // No new connections; those that there are end with the answer that they wait for.
  void drain();
  void close_all();

 private:
  class OnLane;

  Lanes& lanes_;
  std::string address_;
  std::vector<std::unique_ptr<OnLane>> parts_;  // one for each lane; the first one listens
  std::size_t next_ = 0;
};

ApiLimits api_limits(const v1::GatewayConfig& config, std::size_t lanes);

// /metrics (Prometheus), /livez, /readyz, from construction to destruction: on a lane of its own, so that no request
// keeps it from answering. There are few connections, and each has some seconds for a request; a new one takes the
// place of another, as of ApiPort.
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
