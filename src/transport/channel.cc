#include "transport/channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "transport/grpc_message.h"
#include "transport/stream.h"

namespace arlo::transport {
namespace {

constexpr std::size_t kReadOfAnswers = 64 << 10;

std::string error_text(int error) { return std::generic_category().message(error); }

// A machine that is gone sends nothing, not even a notice that it is gone.
void notice_silence(int fd, TimeNs silence) {
  const int one = 1;
  const int seconds = static_cast<int>(silence / 4'000'000'000) + 1;
  const int probes = 3;
  const auto ms = static_cast<unsigned>(silence / 1'000'000);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

}  // namespace

Channel::Channel(Loop& loop, ChannelOptions options) : loop_(loop), options_(std::move(options)) {}

Channel::~Channel() {
  *alive_ = false;
  session_.reset();  // immediately: the callers may not exist later
  lose("the channel is closed");
  loop_.clear(*this);
}

Channel::CallId Channel::call(std::string_view path, std::string message, ClientSession::Done done,
                              std::string traceparent) {
  used_ = now_ns();
  if (state_ == State::kReady && !session_->takes_calls()) lose("the server goes away");
  if (state_ == State::kIdle && used_ >= not_before_) connect();
  if (state_ == State::kReady) {
    return {connections_, session_->call(path, std::move(message), std::move(done), traceparent)};
  }
  if (state_ != State::kIdle) {
    waiting_.push_back({path, std::move(message), std::move(done), std::move(traceparent)});
  } else {
    loop_.at_end([done = std::move(done), why = why_] { done({kUnavailable, why, {}, true, true}); });
  }
  return {};
}

void Channel::give_up(CallId call) {
  if (call.connection == connections_ && state_ == State::kReady) session_->give_up(call.stream);
}

// Names are looked up on a separate thread, because that may take many seconds.
void Channel::connect() {
  std::string why;
  auto numbers = resolve(options_.address, Lookup::kNumbersOnly, &why);
  if (!numbers.empty()) {
    found(std::move(numbers), why);
    return;
  }
  state_ = State::kLookingUp;
  loop_.set(*this, now_ns() + options_.connect_timeout);
  std::thread([back = loop_.handle(), address = options_.address, alive = alive_, this] {
    std::string why_not;
    auto addresses = resolve(address, Lookup::kNames, &why_not);
    back->post([alive, this, addresses = std::move(addresses), why_not]() mutable {
      if (*alive && state_ == State::kLookingUp) found(std::move(addresses), why_not);
    });
  }).detach();
}

void Channel::found(std::vector<SocketAddress> addresses, const std::string& why) {
  addresses_ = std::move(addresses);
  std::ranges::reverse(addresses_);
  try_next(why);
}

void Channel::try_next(std::string why) {
  if (fd_ >= 0) {
    loop_.forget(fd_, *this);
    ::close(std::exchange(fd_, -1));
  }
  while (!addresses_.empty()) {
    const SocketAddress address = addresses_.back();
    addresses_.pop_back();
    const int fd = socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (::connect(fd, address.get(), address.size) == 0 || errno == EINPROGRESS)) {
      const int one = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      notice_silence(fd, options_.silence);
      fd_ = fd;
      state_ = State::kConnecting;
      watched_ = EPOLLOUT;
      loop_.watch(fd_, watched_, *this);
      loop_.set(*this, now_ns() + options_.connect_timeout);
      return;
    }
    why = error_text(errno);
    if (fd >= 0) ::close(fd);
  }
  lose(why);
}

void Channel::connected_now() {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) {
    try_next(error_text(error));
    return;
  }
  loop_.clear(*this);
  state_ = State::kReady;
  ++connections_;
  const bool local = !unix_path(options_.address).empty();
  session_ =
      std::make_unique<ClientSession>(local ? "localhost" : options_.address, options_.limits, [this] { flush(); });
  auto waiting = std::exchange(waiting_, {});
  for (Waiting& each : waiting) {
    session_->call(each.path, std::move(each.message), std::move(each.done), each.traceparent);
  }
  watch();
}

// Fails the waiting calls as well. A connection that was never made, or gave no answer, is not retried at once.
void Channel::lose(const std::string& why) {
  const bool was_ready = state_ == State::kReady;
  state_ = State::kIdle;
  why_ = options_.address + ": " + why;
  addresses_.clear();
  if (fd_ >= 0) {
    loop_.forget(fd_, *this);
    ::close(std::exchange(fd_, -1));
  }
  flushing_ = false;
  watched_ = 0;
  out_.clear();
  sent_ = 0;
  loop_.clear(*this);
  pause_ = was_ready ? 0 : std::clamp(2 * pause_, options_.first_pause, options_.longest_pause);
  not_before_ = now_ns() + pause_;
  auto waiting = std::exchange(waiting_, {});
  // Its calls are lost when it goes, at the end of the turn, since it may be our caller.
  if (session_ != nullptr) {
    session_->lost(why_);
    loop_.at_end([session = std::shared_ptr<ClientSession>(std::move(session_))]() mutable { session.reset(); });
  }
  for (const Waiting& each : waiting) each.done({kUnavailable, why_, {}, true, true});
}

void Channel::flush() {
  if (!std::exchange(flushing_, true)) loop_.ask(*this);
}

void Channel::turn_ends() {
  flushing_ = false;
  if (state_ == State::kReady) write();
}

void Channel::due() {
  const std::string why = "no connection within " + std::to_string(options_.connect_timeout / 1'000'000) + " ms";
  if (state_ == State::kConnecting) {
    try_next(why);
  } else {
    lose(why);
  }
}

void Channel::ready(std::uint32_t events) {
  if (state_ == State::kConnecting) {
    connected_now();
    return;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read();
  if (state_ == State::kReady && (events & EPOLLOUT) != 0) write();
}

void Channel::read() {
  std::array<char, kReadOfAnswers> bytes;
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
