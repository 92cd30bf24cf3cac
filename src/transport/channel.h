// A gRPC client's connection to one address, made when it is needed and again when it is lost; on the thread of one
// loop.
//
// While it is being made calls wait for it. When that fails they are lost, and for a while, longer each time, calls are
// refused at once: the caller has others to go to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/address.h"
#include "transport/client_session.h"
#include "transport/loop.h"

namespace arlo::transport {

struct ChannelOptions {
  std::string address;  // host:port, [IPv6]:port or unix:PATH; names are looked up for each connection
  ClientLimits limits;
  TimeNs connect_timeout = 5'000'000'000;
  TimeNs first_pause = 50'000'000;  // after a connection that could not be made; doubled each time
  TimeNs longest_pause = 1'000'000'000;
  TimeNs silence = 20'000'000'000;  // of a peer's machine, of which what was sent last is not acknowledged
};

class Channel final : public Loop::Watch, public Loop::Timer {
 public:
  Channel(Loop& loop, ChannelOptions options);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  struct CallId {
    std::uint64_t connection = 0;  // 0: it waits for one
    std::int32_t stream = 0;
  };
  // A unary call; `path` outlives it; `done` as of ClientSession, and not from within this. A channel does not go from
  // within a `done` of its own.
  CallId call(std::string_view path, std::string message, ClientSession::Done done, std::string traceparent = {});
  // Resets a call of which no more is wanted; its `done` is called as for one that is lost.
  void give_up(CallId call);
  [[nodiscard]] bool connected() const { return state_ == State::kReady; }
  [[nodiscard]] TimeNs used() const { return used_; }  // when it was last called
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
  std::vector<SocketAddress> addresses_;  // to be tried still, best last
  std::unique_ptr<ClientSession> session_;
  std::vector<Waiting> waiting_;
  std::string out_;
  std::size_t sent_ = 0;  // of out_
  std::uint32_t watched_ = 0;
  bool flushing_ = false;
  TimeNs not_before_ = 0;  // a connection is tried
  TimeNs pause_ = 0;
  TimeNs used_ = 0;
  std::uint64_t connections_ = 0;                               // that were made
  std::string why_;                                             // the last one failed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what is done at the end of a turn
};

}  // namespace arlo::transport
