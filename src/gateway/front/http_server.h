// /metrics (Prometheus), /livez, /readyz.
#pragma once

#include <memory>
#include <string>

#include "gateway/desk/router.h"

namespace arlo::gateway {

// Serves on threads of its own from construction to destruction. Throws std::invalid_argument when the address cannot
// be bound.
class HttpServer {
 public:
  HttpServer(Router& router, const std::string& address);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }  // with the real port

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace arlo::gateway
