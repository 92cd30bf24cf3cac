// A gRPC server's connections that one thread serves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "transport/loop.h"
#include "transport/server_session.h"
#include "transport/tls.h"

namespace arlo::transport {

struct ServerOptions {
  Limits limits;
  TlsContext tls;                        // null: in the clear
  std::size_t connections = 10'000;      // further ones take the place of idle ones, or are refused
  std::size_t sharers = 1;               // servers that share the limit of open files
  std::size_t memory = 1U << 30;         // that calls of all connections may hold
  TimeNs preface_time = 10'000'000'000;  // for TLS, and a connection's first words
  TimeNs ping_after = 120'000'000'000;   // of silence; twice without an answer ends a connection
  TimeNs oldest = kNever;                // a connection is told to go then, its calls end as they would
  TimeNs grace = 30'000'000'000;         // that they have for it
};

// All on the thread of the loop, which outlives it, as does the service.
class Server final {
 public:
  Server(Loop& loop, Service& service, const ServerOptions& options);
  ~Server();  // ends all connections, and with them their calls
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // A connection that was accepted: a socket that does not block, owned from now on.
  void adopt(int fd);
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }
  [[nodiscard]] Memory& memory() { return memory_; }
  // Descriptors have run out: some of its connections go.
  void run_out();
  // No new calls on the connections that there are.
  void drain();
  void close_all();

 private:
  class Connection;
  [[nodiscard]] std::size_t most() const;
  bool make_room();
  void close(Connection& connection);
  void keep_within_memory();
  [[nodiscard]] bool holds_back(const ServerSession& session) const;

  Loop& loop_;
  Service& service_;
  const ServerOptions options_;
  Memory memory_;
  std::uint64_t adopted_ = 0;
  std::list<std::unique_ptr<Connection>> connections_;  // that has been silent the longest first
};

}  // namespace arlo::transport
