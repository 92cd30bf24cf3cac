#include "transport/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"

namespace arlo::transport {

namespace {
const std::string kUnix = "unix:";
}

std::optional<HostPort> parse_address(std::string_view address) {
  const auto colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return {};
  HostPort out;
  if (!read_number(address.substr(colon + 1), &out.port) || out.port < 0 || out.port > 65535) return {};
  auto host = address.substr(0, colon);
  const bool bracketed = host.front() == '[';
  if (bracketed) {
    if (host.size() < 3 || host.back() != ']') return {};
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return {};  // an IPv6 address without brackets does not show where the port begins
  }
  out.host = std::string(host);
  return out;
}

std::string unix_path(std::string_view address) {
  return address.starts_with(kUnix) ? std::string(address.substr(kUnix.size())) : std::string();
}

bool is_local(std::string_view address) {
  if (!unix_path(address).empty()) return true;
  const auto parsed = parse_address(address);
  return parsed && (parsed->host == "localhost" || parsed->host == "::1" || parsed->host.starts_with("127."));
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (family() == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &in.sin_addr, host.data(), host.size());
    return std::string(host.data()) + ":" + std::to_string(ntohs(in.sin_port));
  }
  if (family() == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &in.sin6_addr, host.data(), host.size());
    return "[" + std::string(host.data()) + "]:" + std::to_string(ntohs(in.sin6_port));
  }
  return kUnix + reinterpret_cast<const sockaddr_un&>(storage).sun_path;
}

std::vector<SocketAddress> resolve(std::string_view address, Lookup lookup, std::string* why) {
  std::vector<SocketAddress> out;
  if (const auto path = unix_path(address); !path.empty()) {
    auto& one = out.emplace_back();
    auto& un = reinterpret_cast<sockaddr_un&>(one.storage);
    if (path.size() >= sizeof un.sun_path) {
      *why = "the path of the socket is too long";
      return {};
    }
    un.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), un.sun_path);
    one.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
    return out;
  }
  const auto parsed = parse_address(address);
  if (!parsed) {
    *why = "it is not host:port, [IPv6]:port or unix:PATH";
    return {};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (lookup == Lookup::kNumbersOnly ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(), &hints, &found);
      error != 0) {
    *why = parsed->host + ": " + gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    auto& one = out.emplace_back();
    std::copy_n(reinterpret_cast<const char*>(each->ai_addr), each->ai_addrlen, reinterpret_cast<char*>(&one.storage));
    one.size = each->ai_addrlen;
  }
  return out;
}

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

std::string peer_of(int fd, std::uint64_t number) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return "unknown";
  return address.family() == AF_UNIX ? kUnix + std::to_string(number) : address.text();
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
      const int one = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // fails for a Unix socket, which needs none
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
