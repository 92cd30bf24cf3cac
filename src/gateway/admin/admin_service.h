// The admin port: proto/arlo/v1/admin.proto.
#pragma once

#include <memory>
#include <string>

#include "gateway/desk/models.h"

namespace arlo::gateway {

class AdminServer {
 public:
  // Serves on one separate thread from construction to destruction. Throws std::invalid_argument when the address
  // cannot be served.
  AdminServer(Models& models, const std::string& address);
  ~AdminServer();  // streams end; other calls get a moment
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  [[nodiscard]] const std::string& address() const;  // with the real port

 private:
  class Port;
  std::unique_ptr<Port> port_;
};

}  // namespace arlo::gateway
