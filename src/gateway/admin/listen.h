// A gRPC server on one address, with completion queues.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace arlo::gateway {

struct ListenOptions {
  std::string address;           // host:port; port 0 picks a free one; unix:PATH, for this user only
  const char* what = "address";  // its name in the configuration, for errors
  std::uint64_t max_message_bytes = 0;
};

struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  std::string address;  // with the real port
};

// Throws std::invalid_argument when the address cannot be served.
Listening listen(const ListenOptions& options, const std::vector<grpc::Service*>& services, std::size_t queues);

}  // namespace arlo::gateway
