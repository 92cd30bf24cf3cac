// Addresses in the form of the configuration (host:port, [IPv6]:port, unix:PATH), listening sockets, and accepting
// connections from them.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/loop.h"

namespace arlo::transport {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// Returns nothing unless it is host:port.
std::optional<HostPort> parse_address(std::string_view address);

// The path of unix:PATH; empty for any other.
std::string unix_path(std::string_view address);

// Whether only programs on this machine can reach it.
bool is_local(std::string_view address);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::string text() const;  // in that form
};

enum class Lookup : std::uint8_t { kNames, kNumbersOnly };

// Resolves an address, best first; looking up names may take seconds. Empty, with the reason in *why, on failure.
std::vector<SocketAddress> resolve(std::string_view address, Lookup lookup, std::string* why);

struct Listening {
  int fd = -1;          // non-blocking; the caller owns it
  std::string address;  // with the real port
};

// Listens on host:port, [IPv6]:port (port 0: a free one) or unix:PATH, a socket for this user only, which replaces a
// stale one. Throws std::runtime_error with the reason.
Listening listen_on(const std::string& address);

// Descriptors available now to connections of all ports together: the limit of open files except a quarter, at most
// 1,024, which is reserved for workers, files and other ports.
std::size_t descriptors_for_connections();

// The other side's address; `number` tells clients on a Unix socket apart, which have no names.
std::string peer_of(int fd, std::uint64_t number = 0);

// Accepts connections on a loop's thread, a few at a time. Reports when descriptors run out, and retries shortly after.
class Listener final : public Loop::Watch, public Loop::Timer {
 public:
  // `take`: receives and owns the non-blocking descriptor of each connection.
  Listener(Loop& loop, int fd, std::function<void(int fd)> take, std::function<void()> run_out = [] {});
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  void ready(std::uint32_t events) override;
  void due() override;

 private:
  void pause(TimeNs time);

  Loop& loop_;
  const int fd_;
  const std::function<void(int)> take_;
  const std::function<void()> run_out_;
};

}  // namespace arlo::transport
