// Listening sockets, and accepting connections from them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "transport/loop.h"

namespace arlo::transport {

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
