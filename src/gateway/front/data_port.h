// The data port, which gRPC's clients use.
#pragma once

#include <arlo/v1/config.pb.h>

#include <chrono>
#include <functional>
#include <string>

#include "gateway/front/data_service.h"
#include "gateway/front/port.h"

namespace arlo::gateway {

class DataPort {
 public:
  // As Port; the service outlives it. Throws std::invalid_argument also when a certificate is invalid.
  DataPort(DataService& service, const v1::GatewayConfig& config, Lanes& lanes);

  [[nodiscard]] const std::string& address() const { return port_.address(); }
  // Refuses new connections and calls. Those under way get `patience`; then `cut` is called, which may end calls of
  // other ports. Returns when all are over.
  void drain(std::chrono::milliseconds patience, const std::function<void()>& cut);

 private:
  DataService& service_;
  Port port_;
};

}  // namespace arlo::gateway
