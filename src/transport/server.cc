#include "transport/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/clock.h"

namespace arlo::transport {
namespace {

constexpr std::size_t kRead = 64 << 10;    // bytes at a time
constexpr std::size_t kBatch = 256 << 10;  // that are written at a time
constexpr int kReadsInTurn = 4;            // before the others have theirs
constexpr int kBacklog = 1024;
constexpr TimeNs kPause = 100'000'000;  // when no connection can be accepted

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

class Server::Connection final : public Loop::Watch, public Loop::Timer {
 public:
  Connection(Server& server, int fd)
      : server_(server), fd_(fd), session_(server.service_, server.options_.limits, [this] { wants_to_send(); }) {
    server_.loop_.watch(fd_, EPOLLIN, *this);
    server_.loop_.set(*this, now_ns() + server_.options_.preface_timeout);
  }
  ~Connection() {
    server_.loop_.clear(*this);
    server_.loop_.forget(fd_, *this);
    ::close(fd_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void ready(std::uint32_t events) override {
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read();
    if ((events & EPOLLOUT) != 0 && !broken_) write();
    if (broken_) server_.close(*this);
  }

  void due() override { server_.close(*this); }  // nothing has come since it was accepted

  void drain() { session_.go_away(); }

 private:
  void wants_to_send() {
    if (std::exchange(flushing_, true)) return;
    // One write for all that the events of this turn bring.
    server_.loop_.at_end([&server = server_, connection = this] {
      const auto found = server.connections_.find(connection);
      if (found != server.connections_.end()) connection->flush();
    });
  }

  void flush() {
    flushing_ = false;
    write();
    if (broken_) server_.close(*this);
  }

  void read() {
    std::array<char, kRead> bytes;
    for (int i = 0; i < kReadsInTurn && !broken_ && !full(); ++i) {
      const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
      if (count > 0) {
        server_.loop_.clear(*this);
        if (!session_.feed({bytes.data(), static_cast<std::size_t>(count)}, now_ns())) {
          ending_ = true;
          wants_to_send();  // or else it would end with its client only, where nothing is left to send
        }
      } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        broken_ = true;
      }
      if (count < static_cast<ssize_t>(bytes.size())) break;
    }
    watch();
  }

  void write() {
    for (;;) {
      if (sent_ == out_.size()) {
        out_.clear();
        sent_ = 0;
        if (!session_.output(&out_, kBatch)) broken_ = true;
      }
      if (broken_ || out_.empty()) break;
      const ssize_t count = ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
      if (count < 0) {
        if (errno != EAGAIN && errno != EINTR) broken_ = true;
        break;
      }
      sent_ += static_cast<std::size_t>(count);
      if (sent_ < out_.size()) break;
    }
    if (out_.empty() && (ending_ || session_.over())) broken_ = true;
    watch();
  }

  [[nodiscard]] bool full() const { return out_.size() - sent_ > server_.options_.unsent_bytes; }

  void watch() {
    if (broken_) return;
    const std::uint32_t wanted = (full() || ending_ ? 0U : EPOLLIN) | (sent_ < out_.size() ? EPOLLOUT : 0U);
    if (wanted == std::exchange(watched_, wanted)) return;
    server_.loop_.change(fd_, wanted, *this);
  }

  Server& server_;
  const int fd_;
  ServerSession session_;
  std::string out_;
  std::size_t sent_ = 0;  // of out_
  std::uint32_t watched_ = EPOLLIN;
  bool flushing_ = false;  // at the end of this turn
  bool ending_ = false;    // once all is sent
  bool broken_ = false;
};

Server::Server(Loop& loop, Service& service, const ServerOptions& options)
    : loop_(loop),
      service_(service),
      options_(options),
      fd_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) fail("socket");
  const int one = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.port);
  socklen_t size = sizeof address;
  setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (inet_pton(AF_INET, options.host.c_str(), &address.sin_addr) != 1) errno = EINVAL, fail(options.host);
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(fd_, kBacklog) != 0 ||
      getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    ::close(fd_);
    errno = error;
    fail(options.host + ":" + std::to_string(options.port));
  }
  port_ = ntohs(address.sin_port);
  loop_.watch(fd_, EPOLLIN, *this);
}

Server::~Server() {
  connections_.clear();
  loop_.clear(*this);
  if (fd_ < 0) return;
  loop_.forget(fd_, *this);
  ::close(fd_);
}

void Server::drain() {
  loop_.clear(*this);
  if (fd_ >= 0) {
    loop_.forget(fd_, *this);
    ::close(std::exchange(fd_, -1));
  }
  for (const auto& [connection, owned] : connections_) connection->drain();
}

void Server::ready(std::uint32_t) { accept_all(); }

void Server::due() { loop_.change(fd_, EPOLLIN, *this); }

void Server::accept_all() {
  constexpr int kAtATime = 64;
  for (int i = 0; i < kAtATime; ++i) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      // Without descriptors the connection goes on waiting, and would wake the loop again and again.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        loop_.change(fd_, 0, *this);
        loop_.set(*this, now_ns() + kPause);
      }
      return;
    }
    if (connections_.size() >= options_.connections) {
      ::close(fd);
      continue;
    }
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    auto connection = std::make_unique<Connection>(*this, fd);
    connections_.emplace(connection.get(), std::move(connection));
  }
}

void Server::close(Connection& connection) { connections_.erase(&connection); }

}  // namespace arlo::transport
