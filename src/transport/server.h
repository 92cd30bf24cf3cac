// The connections of a gRPC server on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "transport/loop.h"
#include "transport/server_session.h"
#include "transport/stream.h"

namespace arlo::transport {

struct ServerOptions {
  Limits limits;
  TlsContext tls;                        // null: plain text
  std::size_t connections = 10'000;      // further ones take the place of idle ones, or are refused
  std::size_t sharers = 1;               // servers that share the limit of open files
  std::size_t memory = 1U << 30;         // limit for calls of all connections
  TimeNs preface_time = 10'000'000'000;  // for TLS, and a connection's first bytes
  TimeNs ping_after = 120'000'000'000;   // after silence; two unanswered pings end a connection
  TimeNs oldest = kNever;                // then a connection is asked to leave; its calls end normally
  TimeNs grace = 30'000'000'000;         // for these calls
};

// All on the loop's thread; loop and service outlive it.
class Server final {
 public:
  Server(Loop& loop, Service& service, const ServerOptions& options);
  ~Server();  // ends all connections, and with them their calls
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Takes ownership of an accepted non-blocking socket.
  void adopt(int fd);
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }
  [[nodiscard]] Memory& memory() { return memory_; }
  // Closes some connections because descriptors have run out.
  void run_out();
  // Refuses new calls on existing connections.
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
  std::list<std::unique_ptr<Connection>> connections_;  // the longest silent first
};

}  // namespace arlo::transport
