#include "gateway/front/http_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gateway/desk/metrics.h"
#include "gateway/front/http_message.h"
#include "transport/listener.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kMostConnections = 256;
constexpr TimeNs kRequestTime = 5'000'000'000;  // from the connection or the last answer to the end of the next answer
constexpr TimeNs kPause = 100'000'000;          // when descriptors have run out

HttpAnswer answer_to(const HttpRequest& request, const Models& models, const PortUsage& usage) {
  if (!request.good) return {400, "text/plain", "this is no HTTP/1 request\n"};
  if (!request.addressed) return {400, "text/plain", "a request of HTTP/1.1 has one Host header\n"};
  if (request.method != "GET" && request.method != "HEAD") return {405, "text/plain", "GET only\n"};
  if (request.path == "/livez") return {200, "text/plain", "ok\n"};
  if (request.path == "/readyz") {
    const bool ready = models.ready();
    return {ready ? 200 : 503, "text/plain", ready ? "ok\n" : "no active instance\n"};
  }
  if (request.path == "/metrics") {
    auto [body, type] = write_metrics(models, usage, request.header("accept"));
    return {200, type, std::move(body)};
  }
  return {404, "text/plain", "there are /metrics, /livez and /readyz\n"};
}

}  // namespace

class HttpServer::Loop {
 public:
  Loop(const Models& models, const PortUsage& usage, int listening)
      : models_(models), usage_(usage), listening_(listening), wake_(eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
    thread_.join();
    for (const auto& connection : connections_) close(connection.fd);
    close(listening_);
    close(wake_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  struct Connection {
    int fd = -1;
    TimeNs until = 0;  // closed then
    std::string in;
    std::string out;
    std::size_t sent = 0;
    bool last = false;    // closes when `out` is sent
    bool closed = false;  // to be taken out
  };

  void run() {
    std::vector<pollfd> polled;
    for (;;) {
      const TimeNs now = now_ns();
      TimeNs next = now + kRequestTime;
      polled.assign({{wake_, POLLIN, 0}, {listening_, static_cast<short>(now < pause_until_ ? 0 : POLLIN), 0}});
      if (now < pause_until_) next = pause_until_;
      for (const auto& connection : connections_) {
        polled.push_back({connection.fd, static_cast<short>(connection.out.empty() ? POLLIN : POLLOUT), 0});
        next = std::min(next, connection.until);
      }
      const auto wait_ms = static_cast<int>(std::max<TimeNs>(0, next - now) / 1'000'000 + 1);
      if (poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) return;
      if (polled[0].revents != 0) return;
      std::size_t i = 2;
      for (auto& connection : connections_) {
        if (polled[i++].revents != 0) serve(connection);
        if (now_ns() >= connection.until) connection.closed = true;
      }
      connections_.remove_if([](const Connection& connection) {
        if (connection.closed) close(connection.fd);
        return connection.closed;
      });
      if (polled[1].revents != 0) accept_all();
    }
  }

  void accept_all() {
    for (;;) {
      const int fd = accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN && !drop_one()) pause_until_ = now_ns() + kPause;
        return;
      }
      if (connections_.size() >= kMostConnections) drop_one();
      connections_.emplace_back();
      connections_.back().fd = fd;
      connections_.back().until = now_ns() + kRequestTime;
    }
  }

  // The one whose time is up first; false where there is none.
  bool drop_one() {
    const auto first = std::min_element(connections_.begin(), connections_.end(),
                                        [](const auto& a, const auto& b) { return a.until < b.until; });
    if (first == connections_.end()) return false;
    close(first->fd);
    connections_.erase(first);
    return true;
  }

  // Goes on with a connection as far as it goes without waiting.
  void serve(Connection& connection) {
    for (;;) {
      if (!connection.out.empty()) {
        const auto size = connection.out.size() - connection.sent;
        const auto count = send(connection.fd, connection.out.data() + connection.sent, size, MSG_NOSIGNAL);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (count < 0) break;
        connection.sent += static_cast<std::size_t>(count);
        if (connection.sent < connection.out.size()) continue;
        if (connection.last) break;
        connection.out.clear();
        connection.sent = 0;
        connection.until = now_ns() + kRequestTime;
      }
      if (const auto request = read_request(connection.in)) {
        connection.last = request->last || !request->good;
        connection.out = write_answer(answer_to(*request, models_, usage_), request->method == "HEAD", connection.last);
        connection.in.erase(0, request->size);
        continue;
      }
      if (connection.in.size() > kLongestHead) {
        connection.last = true;
        connection.out = write_answer({431, "text/plain", "the request's head is too long\n"}, false, true);
        continue;
      }
      char buffer[4096];
      const auto count = recv(connection.fd, buffer, sizeof buffer, 0);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (count <= 0) break;
      connection.in.append(buffer, static_cast<std::size_t>(count));
    }
    connection.closed = true;
  }

  const Models& models_;
  const PortUsage& usage_;
  const int listening_;
  const int wake_;
  TimeNs pause_until_ = 0;
  std::list<Connection> connections_;
  std::thread thread_;
};

HttpServer::HttpServer(const Models& models, const PortUsage& usage, const std::string& address) {
  try {
    const auto listening = transport::listen_on(address);
    address_ = listening.address;
    loop_ = std::make_unique<Loop>(models, usage, listening.fd);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument("http_address '" + address + "' cannot be bound: " + error.what());
  }
}

HttpServer::~HttpServer() = default;

}  // namespace arlo::gateway
