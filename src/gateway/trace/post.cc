#include "gateway/trace/post.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "base/clock.h"
#include "transport/address.h"

namespace arlo::gateway {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

class Socket {
 public:
  Socket(int fd, TimeNs until) : fd_(fd), until_(until) {}
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // False: the time is up.
  [[nodiscard]] bool await(short events) const {
    const auto left = static_cast<int>(std::max<TimeNs>(0, until_ - now_ns()) / 1'000'000);
    pollfd polled{fd_, events, 0};
    return left > 0 && poll(&polled, 1, left) > 0;
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  const int fd_;
  const TimeNs until_;
};

// The answer's status; empty, or why there is none.
std::string exchange(const Socket& socket, std::string_view request, std::string* line) {
  while (!request.empty()) {
    if (!socket.await(POLLOUT)) return "it takes too long to take a request";
    const auto count = send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return error_text(errno);
    if (count > 0) request.remove_prefix(static_cast<std::size_t>(count));
  }
  constexpr std::size_t kMost = 1024;  // of an answer of which only the first line counts
  while (line->find("\r\n") == std::string::npos && line->size() < kMost) {
    if (!socket.await(POLLIN)) return "it takes too long to answer";
    char bytes[kMost];
    const auto count = recv(socket.fd(), bytes, sizeof bytes, 0);
    if (count == 0) return "it closed the connection without an answer";
    if (count < 0 && errno != EAGAIN && errno != EINTR) return error_text(errno);
    if (count > 0) line->append(bytes, static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

HttpTarget read_target(std::string_view url) {
  if (url.empty()) return {};
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    throw std::invalid_argument("tracing.otlp_endpoint '" + std::string(url) + "' is not http://host:port");
  }
  url.remove_prefix(kScheme.size());
  const auto slash = std::min(url.find('/'), url.size());
  HttpTarget target{std::string(url.substr(0, slash)), std::string(url.substr(slash))};
  if (target.path.empty() || target.path == "/") target.path = "/v1/traces";
  if (!transport::parse_address(target.host_port)) {
    throw std::invalid_argument("tracing.otlp_endpoint: '" + target.host_port + "' is not host:port");
  }
  return target;
}

std::string post(const HttpTarget& target, std::string_view body, TimeNs patience) {
  std::string why;
  const TimeNs until = now_ns() + patience;
  for (const auto& address : transport::resolve(target.host_port, transport::Lookup::kNames, &why)) {
    const int fd = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return error_text(errno);
    const Socket socket(fd, until);
    int error = connect(fd, address.get(), address.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      if (!socket.await(POLLOUT)) {
        error = ETIMEDOUT;
      } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
      }
    }
    if (error != 0) {
      why = error_text(error);
      continue;
    }
    std::string request = "POST " + target.path + " HTTP/1.1\r\nHost: " + target.host_port +
                          "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                          "\r\nConnection: close\r\n\r\n";
    request += body;
    std::string line;
    if (auto broke = exchange(socket, request, &line); !broke.empty()) return broke;
    const bool taken = line.starts_with("HTTP/1.") && line.size() > 9 && line[9] == '2';
    return taken ? std::string() : "it answers " + line.substr(0, line.find("\r\n"));
  }
  return why.empty() ? "its address has no meaning" : why;
}

}  // namespace arlo::gateway
