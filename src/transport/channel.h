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

#include "transport/client_session.h"
#include "transport/loop.h"

namespace arlo::transport {

struct ChannelOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  ClientLimits limits;
  TimeNs connect_timeout = 5'000'000'000;
  TimeNs first_pause = 50'000'000;  // after a connection that could not be made; doubled each time
  TimeNs longest_pause = 2'000'000'000;
};

class Channel final : public Loop::Watch, public Loop::Timer {
 public:
  Channel(Loop& loop, ChannelOptions options);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // A unary call; `done` as of ClientSession. A channel does not go from within a `done` of its own.
  void call(std::string_view path, std::string message, ClientSession::Done done);
  [[nodiscard]] bool connected() const { return state_ == State::kReady; }

  void ready(std::uint32_t events) override;
  void due() override;

 private:
  enum class State : std::uint8_t { kIdle, kConnecting, kReady };
  struct Waiting {
    std::string path;
    std::string message;
    ClientSession::Done done;
  };

  void connect();
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
  std::unique_ptr<ClientSession> session_;
  std::vector<Waiting> waiting_;
  std::string out_;
  std::size_t sent_ = 0;  // of out_
  std::uint32_t watched_ = 0;
  bool flushing_ = false;
  TimeNs not_before_ = 0;  // a connection is tried
  TimeNs pause_ = 0;
  std::string why_;                                             // the last one failed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what is done at the end of a turn
};

}  // namespace arlo::transport
