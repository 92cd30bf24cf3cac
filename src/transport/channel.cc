#include "transport/channel.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/clock.h"

namespace arlo::transport {
namespace {

constexpr std::uint32_t kUnavailable = 14;
constexpr std::size_t kRead = 64 << 10;
constexpr std::size_t kBatch = 256 << 10;
constexpr int kReadsInTurn = 16;

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace

Channel::Channel(Loop& loop, ChannelOptions options) : loop_(loop), options_(std::move(options)) {}

Channel::~Channel() {
  *alive_ = false;
  session_.reset();  // at once: nobody may be there for its answers later
  lose("the channel is closed");
  loop_.clear(*this);
}

void Channel::call(std::string_view path, std::string message, ClientSession::Done done) {
  if (state_ == State::kReady && session_->takes_calls()) {
    session_->call(path, std::move(message), std::move(done));
    return;
  }
  if (state_ == State::kReady) lose("the server goes away");
  if (state_ == State::kIdle && now_ns() >= not_before_) connect();
  if (state_ == State::kReady) {
    session_->call(path, std::move(message), std::move(done));
  } else if (state_ == State::kConnecting) {
    waiting_.push_back({std::string(path), std::move(message), std::move(done)});
  } else {
    done({kUnavailable, why_, {}, true, true});
  }
}

void Channel::connect() {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(options_.port);
  if (const int error = getaddrinfo(options_.host.c_str(), port.c_str(), &hints, &found); error != 0) {
    lose(options_.host + ": " + gai_strerror(error));
    return;
  }
  int error = 0;
  fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0 || ::connect(fd_, found->ai_addr, found->ai_addrlen) != 0) error = errno;
  freeaddrinfo(found);
  if (error != 0 && error != EINPROGRESS) {
    lose(error_text(error));
    return;
  }
  const int one = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  state_ = State::kConnecting;
  watched_ = EPOLLOUT;
  loop_.watch(fd_, watched_, *this);
  loop_.set(*this, now_ns() + options_.connect_timeout);
}

void Channel::connected_now() {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) {
    lose(error_text(error));
    return;
  }
  loop_.clear(*this);
  state_ = State::kReady;
  session_ = std::make_unique<ClientSession>(options_.host + ":" + std::to_string(options_.port), options_.limits,
                                             [this] { flush(); });
  auto waiting = std::exchange(waiting_, {});
  for (Waiting& each : waiting) session_->call(each.path, std::move(each.message), std::move(each.done));
  watch();
}

// With what waits for it. A connection that was never made, or that gave no answer, is not tried again at once.
void Channel::lose(const std::string& why) {
  const bool was_ready = state_ == State::kReady;
  state_ = State::kIdle;
  why_ = why;
  if (fd_ >= 0) {
    if (watched_ != 0 || was_ready) loop_.forget(fd_, *this);
    ::close(std::exchange(fd_, -1));
  }
  watched_ = 0;
  out_.clear();
  sent_ = 0;
  loop_.clear(*this);
  pause_ = was_ready ? 0 : std::clamp(2 * pause_, options_.first_pause, options_.longest_pause);
  not_before_ = now_ns() + pause_;
  auto waiting = std::exchange(waiting_, {});
  // Its calls are lost when it goes: at the end of the turn, since it may be what we were called by.
  if (session_ != nullptr)
    loop_.at_end([session = std::shared_ptr<ClientSession>(std::move(session_))]() mutable { session.reset(); });
  for (const Waiting& each : waiting) each.done({kUnavailable, why, {}, true, true});
}

void Channel::flush() {
  if (std::exchange(flushing_, true)) return;
  loop_.at_end([this, alive = alive_] {
    if (!*alive) return;
    flushing_ = false;
    if (state_ == State::kReady) write();
  });
}

void Channel::due() { lose("no connection within " + std::to_string(options_.connect_timeout / 1'000'000) + " ms"); }

void Channel::ready(std::uint32_t events) {
  if (state_ == State::kConnecting) {
    connected_now();
    return;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read();
  if (state_ == State::kReady && (events & EPOLLOUT) != 0) write();
}

void Channel::read() {
  std::array<char, kRead> bytes;
  for (int i = 0; i < kReadsInTurn && state_ == State::kReady; ++i) {
    const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
    if (count > 0) {
      const auto alive = alive_;
      const bool good = session_->feed({bytes.data(), static_cast<std::size_t>(count)});
      if (!*alive) return;
      if (!good && state_ == State::kReady) lose("the server ended the connection");
    } else if (count == 0) {
      lose("the server closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      lose(error_text(errno));
    }
    if (count < static_cast<ssize_t>(bytes.size())) break;
  }
}

void Channel::write() {
  for (;;) {
    if (sent_ == out_.size()) {
      out_.clear();
      sent_ = 0;
      if (!session_->output(&out_, kBatch)) {
        lose("HTTP/2 failed");
        return;
      }
      if (out_.empty()) break;
    }
    const ssize_t count = ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EAGAIN || errno == EINTR) break;
      lose(error_text(errno));
      return;
    }
    sent_ += static_cast<std::size_t>(count);
    if (sent_ < out_.size()) break;
  }
  watch();
}

void Channel::watch() {
  const std::uint32_t wanted = EPOLLIN | (sent_ < out_.size() ? EPOLLOUT : 0U);
  if (wanted != std::exchange(watched_, wanted)) loop_.change(fd_, wanted, *this);
}

}  // namespace arlo::transport
