// The admin port: proto/arlo/v1/admin.proto.
#pragma once

#include <arlo/v1/admin.grpc.pb.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>

#include "gateway/admin/rpc.h"
#include "gateway/desk/models.h"

namespace arlo::gateway {

class StatsStream;

class AdminServer {
 public:
  // Serves from construction to destruction. Throws std::invalid_argument when the address cannot be bound.
  AdminServer(Models& models, const std::string& address);
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }  // with the real port

 private:
  friend class StatsStream;

  void serve_methods();
  void loop();

  Models& models_;
  v1::Admin::AsyncService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unordered_set<StatsStream*> streams_;  // of the admin thread alone
  std::atomic<bool> stopping_{false};         // streams end
  std::atomic<bool> server_down_{false};      // no further calls
  std::thread thread_;
};

}  // namespace arlo::gateway
