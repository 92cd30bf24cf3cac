#include "transport/listener.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "transport/address.h"

namespace arlo::transport {
namespace {

// A burst of connections waits in the kernel while others are served: at most 2,000 a second are accepted, which leaves
// the machine's cores some time for existing connections.
constexpr int kAtATime = 4;
constexpr TimeNs kBreath = 2'000'000;
constexpr TimeNs kPause = 100'000'000;

// A socket file left by a server that has gone blocks the address of the next one.
void clear_stale(const SocketAddress& address, const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  if (connect(fd, address.get(), address.size) != 0 && errno == ECONNREFUSED) unlink(path.c_str());
  close(fd);
}

// Returns 0 or an errno.
int bind_and_listen(int fd, const SocketAddress& address, const std::string& path) {
  // SO_REUSEPORT is not set: two programs that share the port would each get some of the connections.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (!path.empty()) clear_stale(address, path);
  // No other user may access the socket file while it is made.
  const mode_t before = path.empty() ? 0 : umask(S_IRWXG | S_IRWXO | S_IXUSR);
  int error = bind(fd, address.get(), address.size) == 0 ? 0 : errno;
  if (!path.empty()) umask(before);
  if (error == 0 && listen(fd, SOMAXCONN) != 0) error = errno;
  return error;
}

}  // namespace

Listening listen_on(const std::string& address) {
  std::string why;
  for (const auto& candidate : resolve(address, Lookup::kNames, &why)) {
    Listening out;
    out.fd = socket(candidate.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = out.fd < 0 ? errno : bind_and_listen(out.fd, candidate, unix_path(address));
    SocketAddress bound;
    bound.size = sizeof bound.storage;
    if (error == 0 && getsockname(out.fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) error = errno;
    if (error == 0) {
      const auto text = bound.text();
      const auto host = address.substr(0, address.rfind(':') + 1);  // as it was written
      out.address = bound.family() == AF_UNIX ? address : host + text.substr(text.rfind(':') + 1);
      return out;
    }
    if (out.fd >= 0) close(out.fd);
    why = std::generic_category().message(error);
  }
  throw std::runtime_error(why);
}

std::size_t descriptors_for_connections() {
  constexpr rlim_t kOthers = 1024;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur - std::min(limit.rlim_cur / 4, kOthers);
}

Listener::Listener(Loop& loop, int fd, std::function<void(int)> take, std::function<void()> run_out)
    : loop_(loop), fd_(fd), take_(std::move(take)), run_out_(std::move(run_out)) {
  yields = true;
  loop_.watch(fd_, EPOLLIN, *this);
}

Listener::~Listener() {
  loop_.clear(*this);
  loop_.forget(fd_, *this);
  close(fd_);
}

void Listener::ready(std::uint32_t) {
  for (int i = 0; i < kAtATime; ++i) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      take_(fd);
      continue;
    }
    // Without descriptors the connection stays pending, and would wake the loop again and again.
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    pause(kPause);
    return run_out_();
  }
  pause(kBreath);
}

void Listener::pause(TimeNs time) {
  loop_.change(fd_, 0, *this);
  loop_.set(*this, now_ns() + time);
}

void Listener::due() { loop_.change(fd_, EPOLLIN, *this); }

}  // namespace arlo::transport
