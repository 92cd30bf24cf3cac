// A gRPC server on TCP: connections of one address, served by the thread of one loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "transport/loop.h"
#include "transport/server_session.h"

namespace arlo::transport {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: a free one
  Limits limits;
  std::size_t connections = 10'000;
  std::size_t unsent_bytes = 16U << 20;     // of a connection, above which nothing is read from it
  TimeNs preface_timeout = 10'000'000'000;  // for the first bytes of a connection
};

class Server final : public Loop::Watch, public Loop::Timer {
 public:
  // Listens at once. Throws std::system_error. All on the thread of the loop, which outlives it.
  Server(Loop& loop, Service& service, const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }
  // No new connections, and no new calls on those that there are.
  void drain();

  void ready(std::uint32_t events) override;
  void due() override;

 private:
  class Connection;
  void accept_all();
  void close(Connection& connection);

  Loop& loop_;
  Service& service_;
  const ServerOptions options_;
  int fd_ = -1;
  std::uint16_t port_ = 0;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
};

}  // namespace arlo::transport
