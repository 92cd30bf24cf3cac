// Listening sockets, and the taking of connections from them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "transport/loop.h"

namespace arlo::transport {

struct Listening {
  int fd = -1;          // does not block; of whoever asked for it
  std::string address;  // with the real port
};

// host:port, [IPv6]:port (port 0: a free one) or unix:PATH, a socket for this user only in place of one that nobody
// serves any more. Throws std::runtime_error that says why not.
Listening listen_on(const std::string& address);

// Descriptors that connections of all ports together may have now: the limit of open files but for a quarter, at most
// 1,024, which is for workers, files and ports of other kinds.
std::size_t descriptors_for_connections();

// Takes connections on the thread of a loop, so many at a time. When descriptors run out it says so, and tries again a
// little later.
class Listener final : public Loop::Watch, public Loop::Timer {
 public:
  // `take`: gets the descriptor of each connection, which does not block, and is its owner.
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
