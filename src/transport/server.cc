#include "transport/server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "transport/listener.h"
#include "transport/stream.h"

namespace arlo::transport {
namespace {

constexpr std::size_t kRead = 16 << 10;  // bytes at a time: at least one TLS record, of which no rest may stay
constexpr int kWritesInTurn = 4;
constexpr std::size_t kCheap = 4 << 10;  // bytes that cannot cost much
constexpr TimeNs kCostly = 300'000;      // cost of one turn's bytes above which a connection yields to others
constexpr TimeNs kTick = 1'000'000'000;  // maximum delay of a time limit
constexpr TimeNs kPressed = 50'000'000;  // between checks whether memory is available again
constexpr std::uint64_t kSpread = 10;    // connections of one age leave spread over this percentage of it

}  // namespace

class Server::Connection final : public Loop::Watch, public Loop::Timer {
 public:
  Connection(Server& server, int fd)
      : server_(server),
        number_(server.adopted_++),
        peer_(peer_of(fd, number_)),
        stream_(fd, server.options_.tls),
        session_(server.service_, server.options_.limits, server.memory_, peer_, [this] { wants_to_send(); }),
        born_(now_ns()),
        heard_(born_) {
    yields = true;  // until its first call: strangers connect and leave by the thousand
    server_.loop_.watch(fd, EPOLLIN, *this);
    schedule(born_);
  }
  ~Connection() {
    server_.loop_.clear(*this);
    server_.loop_.forget(stream_.fd(), *this);
    if (!stream_.fault().empty()) server_.service_.offended(peer_, "TLS: " + stream_.fault());
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::list<std::unique_ptr<Connection>>::iterator place;  // in connections_

  [[nodiscard]] bool idle() const { return session_.calls() == 0; }
  [[nodiscard]] bool called() const { return session_.called(); }
  [[nodiscard]] bool slow(TimeNs now) const { return now - heard_ > kTick && session_.waits_for_client(); }
  [[nodiscard]] std::size_t held() const { return session_.held(); }
  bool shed() { return session_.shed(); }

  void ready(std::uint32_t events) override {
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) pressed_ = false;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 || tls_waits_) read();
    if ((events & EPOLLOUT) != 0 && !broken_) write();
    if (broken_) {
      server_.close(*this);
    } else {
      server_.keep_within_memory();
    }
  }

  void turn_ends() override {
    flushing_ = false;
    write();
    if (broken_) {
      server_.close(*this);
    } else if (!out_.empty() || session_.owes()) {
      tick_soon(now_ns());
    }
  }

  // One timer for all time limits: it is set again only when it has fired.
  void due() override {
    const TimeNs now = now_ns();
    const auto& options = server_.options_;
    if (!session_.greeted() && now - born_ >= options.preface_time) {
      server_.service_.offended(peer_, "time for the first words");
      server_.close(*this);
      return;
    }
    if (!session_.tick(now)) ending_ = true;
    if (now >= go_at() && !leaving_) {
      leaving_ = true;
      session_.go_away();
    }
    const TimeNs silence = now - heard_;
    const bool asked = pinged_ > heard_;
    const bool deaf = asked && now - pinged_ >= options.ping_after;
    if (deaf || (leaving_ && now - options.grace >= go_at()) || (ending_ && silence >= options.preface_time)) {
      server_.close(*this);
      return;
    }
    if (silence >= options.ping_after && !asked) {
      pinged_ = now;
      session_.ping();
    }
    schedule(now);
    if (std::exchange(pressed_, false)) read();
    if (broken_) server_.close(*this);
  }

  void drain() { session_.go_away(); }

 private:
  [[nodiscard]] TimeNs go_at() const {
    const TimeNs oldest = server_.options_.oldest;
    if (oldest == kNever) return kNever;
    return born_ + oldest + oldest / 100 * static_cast<TimeNs>(number_ % kSpread);
  }

  void schedule(TimeNs now) {
    const auto& options = server_.options_;
    TimeNs next = std::max(heard_, pinged_) + options.ping_after;
    next = std::min(next, leaving_ ? now + kTick : go_at());
    if (!session_.greeted()) next = std::min(next, born_ + options.preface_time);
    if (session_.awaits() || ending_) next = std::min(next, now + kTick);
    if (pressed_) next = std::min(next, now + kPressed);
    server_.loop_.set(*this, next);
  }

  void tick_soon(TimeNs now) {
    if (at > now + kTick) server_.loop_.set(*this, now + kTick);
  }

  void wants_to_send() {
    // One write for the output of all events of this turn.
    if (!std::exchange(flushing_, true)) server_.loop_.ask(*this);
  }

  void read() {
    std::array<char, kRead> bytes;
    TimeNs began = 0;
    tls_waits_ = false;
    for (int i = 0; i < kReadsInTurn && !broken_ && !ending_; ++i) {
      if (server_.holds_back(session_)) {
        pressed_ = true;  // its held bytes must shrink first
        server_.loop_.set(*this, now_ns() + kPressed);
        break;
      }
      const long count = stream_.read(bytes.data(), bytes.size());
      if (count > 0) {
        heard_ = now_ns();
        if (began == 0) began = heard_;
        if (!session_.feed({bytes.data(), static_cast<std::size_t>(count)}, heard_)) {
          ending_ = true;
          wants_to_send();  // otherwise, with nothing left to send, it would end only with its client
        }
        const bool costly = (i > 0 || static_cast<std::size_t>(count) > kCheap) && now_ns() - began > kCostly;
        yields = costly || !session_.called();
        if (costly) break;
      } else if (count != ByteStream::kBlocked) {
        broken_ = true;
      } else {
        tls_waits_ = stream_.wants_write();
        break;
      }
      // The socket is drained; TLS gives one record at a time.
      if (server_.options_.tls == nullptr && count < static_cast<long>(bytes.size())) break;
    }
    if (began != 0) {
      auto& all = server_.connections_;
      all.splice(all.end(), all, place);
      if (session_.awaits()) tick_soon(heard_);
    }
    watch();
  }

  void write() {
    for (int i = 0;; ++i) {
      if (sent_ == out_.size()) {
        out_.clear();
        sent_ = 0;
        if (!session_.output(&out_, kBatch)) broken_ = true;
      }
      if (broken_ || out_.empty() || i == kWritesInTurn) break;
      const long count = stream_.write(out_.data() + sent_, out_.size() - sent_);
      if (count < 0) {
        broken_ = count == ByteStream::kBroken;
        break;
      }
      sent_ += static_cast<std::size_t>(count);
    }
    if (out_.empty() && (ending_ || session_.over())) broken_ = true;
    watch();
  }

  void watch() {
    if (broken_) return;
    const bool out = sent_ < out_.size() || tls_waits_;
    const std::uint32_t wanted = (ending_ || pressed_ ? 0U : EPOLLIN) | (out ? EPOLLOUT : 0U);
    if (wanted == std::exchange(watched_, wanted)) return;
    server_.loop_.change(stream_.fd(), wanted, *this);
  }

  Server& server_;
  const std::uint64_t number_;
  const std::string peer_;
  ByteStream stream_;
  ServerSession session_;
  std::string out_;
  std::size_t sent_ = 0;  // in out_
  const TimeNs born_;
  TimeNs heard_;
  TimeNs pinged_ = 0;  // last
  std::uint32_t watched_ = EPOLLIN;
  bool tls_waits_ = false;  // a read needs a write first
  bool flushing_ = false;   // at the end of this turn
  bool pressed_ = false;    // reading is paused for a moment
  bool leaving_ = false;    // asked to leave
  bool ending_ = false;     // once all is sent
  bool broken_ = false;
};

Server::Server(Loop& loop, Service& service, const ServerOptions& options)
    : loop_(loop), service_(service), options_(options), memory_{options.memory} {}

Server::~Server() { close_all(); }

void Server::adopt(int fd) {
  if (connections_.size() >= most() && !make_room()) {
    ::close(fd);
    return;
  }
  auto connection = std::make_unique<Connection>(*this, fd);
  service_.connected(1);
  Connection& added = *connection;
  connections_.push_back(std::move(connection));
  added.place = std::prev(connections_.end());
}

std::size_t Server::most() const {
  return std::max<std::size_t>(1, std::min(options_.connections, descriptors_for_connections() / options_.sharers));
}

// Closes the connection that has been silent the longest: first among those that never had a call, then among those
// without one now, then among those that keep us waiting with incomplete requests or unread answers.
bool Server::make_room() {
  constexpr int kLooked = 1024;
  const TimeNs now = now_ns();
  Connection* idle = nullptr;
  Connection* slow = nullptr;
  int looked = 0;
  for (const auto& connection : connections_) {
    if (++looked > kLooked) break;
    if (!connection->called()) {
      close(*connection);
      return true;
    }
    if (idle == nullptr && connection->idle()) idle = connection.get();
    if (slow == nullptr && connection->slow(now)) slow = connection.get();
  }
  if (idle == nullptr) idle = slow;
  if (idle == nullptr) return false;
  close(*idle);
  return true;
}

void Server::run_out() {
  while (make_room() && connections_.size() > most()) {
  }
}

void Server::keep_within_memory() {
  while (memory_.used > memory_.limit) {
    Connection* most = nullptr;
    for (const auto& connection : connections_) {
      if (most == nullptr || connection->held() > most->held()) most = connection.get();
    }
    if (most == nullptr || !most->shed()) return;
  }
}

// When memory is short, nothing more is read from connections that hold more than others. Messages already begun are
// read to the end, as their bytes would otherwise be held for nothing.
bool Server::holds_back(const ServerSession& session) const {
  return memory_.used > memory_.limit / 4 * 3 && session.held() > memory_.used / memory_.holders && !session.awaits();
}

void Server::drain() {
  for (const auto& connection : connections_) connection->drain();
}

void Server::close_all() {
  while (!connections_.empty()) close(*connections_.front());
}

void Server::close(Connection& connection) {
  connections_.erase(connection.place);
  service_.connected(-1);
}

}  // namespace arlo::transport
