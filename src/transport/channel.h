// A gRPC client's connection to one address, made on demand and remade after a loss; on the thread of one loop.
//
// Calls wait while the connection is being made. If that fails they are lost, and for a growing pause further calls are
// refused at once, so that the caller can go elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/client_session.h"
#include "transport/listener.h"
#include "transport/loop.h"

namespace arlo::transport {

struct ChannelOptions {
  std::string address;  // host:port, [IPv6]:port or unix:PATH; names are looked up for each connection
  ClientLimits limits;
  TimeNs connect_timeout = 5'000'000'000;
  TimeNs first_pause = 50'000'000;  // after a failed connection; doubled each time
  TimeNs longest_pause = 1'000'000'000;
  TimeNs silence = 20'000'000'000;  // time that sent data may stay unacknowledged by the peer's machine
};

class Channel final : public Loop::Watch, public Loop::Timer {
 public:
  Channel(Loop& loop, ChannelOptions options);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  struct CallId {
    std::uint64_t connection = 0;  // 0: the call waits for one
    std::int32_t stream = 0;
  };
  // Makes a unary call; `path` outlives it; `done` is as in ClientSession, and is not called from within call(). A
  // channel must not be deleted within one of its `done` callbacks.
  CallId call(std::string_view path, std::string message, ClientSession::Done done, std::string traceparent = {});
  // Resets a call that is no longer wanted; its `done` is called as for a lost call.
  void give_up(CallId call);
  [[nodiscard]] bool connected() const { return state_ == State::kReady; }
  [[nodiscard]] TimeNs used() const { return used_; }  // time of the last call
  [[nodiscard]] bool busy() const { return !waiting_.empty() || (session_ != nullptr && session_->calls() > 0); }

  void ready(std::uint32_t events) override;
  void turn_ends() override;
  void due() override;

 private:
  enum class State : std::uint8_t { kIdle, kLookingUp, kConnecting, kReady };
  struct Waiting {
    std::string_view path;
    std::string message;
    ClientSession::Done done;
    std::string traceparent;
  };

  void connect();
  void found(std::vector<SocketAddress> addresses, const std::string& why);
  void try_next(std::string why);
  void connected_now();
  void lose(const std::string& why);
  void flush();
  void read();
  void write();
  void watch();

  Loop& loop_;
  const ChannelOptions options_;
  State state_ = State::kIdle;
  int fd_ = -1;
  std::vector<SocketAddress> addresses_;  // still to be tried, best last
  std::unique_ptr<ClientSession> session_;
  std::vector<Waiting> waiting_;
  std::string out_;
  std::size_t sent_ = 0;  // in out_
  std::uint32_t watched_ = 0;
  bool flushing_ = false;
  TimeNs not_before_ = 0;  // earliest time of the next connection
  TimeNs pause_ = 0;
  TimeNs used_ = 0;
  std::uint64_t connections_ = 0;                               // made so far
  std::string why_;                                             // why the last one failed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for work at the end of a turn
};

}  // namespace arlo::transport
