// The data port: an address, and its connections on all lanes.
#pragma once

#include <arlo/v1/config.pb.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gateway/fleet/lane.h"
#include "gateway/front/data_service.h"

namespace arlo::gateway {

using Lanes = std::vector<std::unique_ptr<Lane>>;

class DataPort {
 public:
  // Accepts connections once the lanes run; lanes and service outlive it. Throws std::invalid_argument when the address
  // cannot be served, or a certificate is invalid.
  DataPort(DataService& service, const v1::GatewayConfig& config, Lanes& lanes);
  ~DataPort();  // the lanes must have stopped
  DataPort(const DataPort&) = delete;
  DataPort& operator=(const DataPort&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }  // with the real port
  // Refuses new connections and calls. Those under way get `patience`; then `cut` is called, which may end calls of
  // other ports. Returns when all are over.
  void drain(std::chrono::milliseconds patience, const std::function<void()>& cut);

 private:
  class OnLane;
  [[nodiscard]] std::size_t connections();

  DataService& service_;
  Lanes& lanes_;
  std::string address_;
  std::vector<std::unique_ptr<OnLane>> parts_;  // one per lane; the first one listens
  std::size_t next_ = 0;                        // lane for the next connection; on the first lane
};

}  // namespace arlo::gateway
