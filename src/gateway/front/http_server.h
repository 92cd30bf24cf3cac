// /metrics (Prometheus), /livez, /readyz.
#pragma once

#include <memory>
#include <string>

#include "gateway/desk/models.h"
#include "gateway/front/usage.h"

namespace arlo::gateway {

// Serves from construction to destruction. Throws std::invalid_argument when the address cannot be bound.
//
// One thread waits for all connections at once, so none can keep it from the others: neither one that says nothing nor
// one that does not read. A connection has some seconds for each request; there are so many, and a new one takes the
// place of the one whose time is up first.
class HttpServer {
 public:
  HttpServer(const Models& models, const PortUsage& usage, const std::string& address);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }  // with the real port

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::string address_;
};

}  // namespace arlo::gateway
