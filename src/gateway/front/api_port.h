// The HTTP API's port: text over HTTP/1.1, on the lanes of the data port. A request becomes a ModelInfer call, and from
// there on is one.
#pragma once

#include <arlo/v1/config.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "gateway/front/data_port.h"
#include "gateway/front/data_service.h"

namespace arlo::gateway {

class ApiPort {
 public:
  // As of DataPort. Without an api_address it serves nothing.
  ApiPort(DataService& service, const v1::GatewayConfig& config, Lanes& lanes);
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

}  // namespace arlo::gateway
