// One HTTP/1.1 connection of the API's port. It serves one request at a time: pipelined requests wait, mostly in the
// client's socket. All on the lane's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/fleet/lane.h"
#include "gateway/front/data_service.h"
#include "gateway/front/http/api_request.h"
#include "gateway/front/http/http_message.h"
#include "transport/server_session.h"
#include "transport/stream.h"

namespace arlo::gateway {

struct ApiLimits {
  bool probes = false;          // serves /metrics, /livez and /readyz only
  std::size_t connections = 0;  // per lane
  std::size_t sharers = 1;      // lanes of all ports that share the limit of open files
  std::size_t memory = 0;       // bytes of requests and answers on a lane's connections
  std::size_t head_bytes = 0;
  std::size_t body_bytes = 0;
  TimeNs head_time = 0;              // from a head's first byte to its last
  TimeNs body_time = 0;              // for a body; for a client to take an answer, or the next part of a long one
  TimeNs idle_time = 0;              // between requests
  TimeNs first_time = 0;             // until a connection's first bytes, including the TLS handshake
  transport::TlsContext tls;         // null: plain text
  std::vector<std::string> origins;  // origins of browser pages allowed to ask; "*": any
};

class ApiConnection;

// The connections of a lane, as seen by one of them.
class ApiConnections {
 public:
  [[nodiscard]] const ApiLimits& limits() const { return limits_; }
  virtual void close(ApiConnection& connection) = 0;  // deletes the connection
  [[nodiscard]] virtual bool draining() const = 0;
  // Above the memory limit: closes connections that hold most and take nothing of their answers. False: still above.
  virtual bool make_room_in_memory() = 0;

  std::size_t held = 0;  // bytes, of all connections

 protected:
  explicit ApiConnections(const ApiLimits& limits) : limits_(limits) {}
  ~ApiConnections() = default;

 private:
  const ApiLimits limits_;
};

class ApiConnection final : public transport::Loop::Watch,
                            public transport::Loop::Timer,
                            private transport::ServerCall {
 public:
  ApiConnection(ApiConnections& all, DataService& service, Lane& lane, int fd);
  ~ApiConnection();
  ApiConnection(const ApiConnection&) = delete;
  ApiConnection& operator=(const ApiConnection&) = delete;

  // The connection's priority when others need room, and when its state last changed.
  enum class Wanted : std::uint8_t { kSilent, kIdle, kSlow, kBusy };
  [[nodiscard]] Wanted wanted(TimeNs now) const;
  [[nodiscard]] TimeNs since() const { return since_; }
  [[nodiscard]] bool idle() const { return state_ == State::kClosing || (state_ == State::kHead && in_.empty()); }
  void end_with_answer() { last_ = true; }  // the pending answer
  // Whether the client has taken nothing of an answer, or sent nothing of a body, for a while.
  [[nodiscard]] bool stalled(TimeNs now) const;
  [[nodiscard]] std::size_t held() const { return held_; }

  void ready(std::uint32_t events) override;
  void turn_ends() override;
  void due() override;

 private:
  enum class State : std::uint8_t { kHead, kBody, kBusy, kSending, kClosing };

  // The call made from the request; its service answers it as any other.
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::string_view header(std::string_view name) const override;
  [[nodiscard]] const std::string& peer() const override { return peer_; }
  [[nodiscard]] TimeNs deadline() const override { return deadline_; }
  void send(std::string message) override { answer_ = std::move(message); }
  void finish(std::uint32_t status, std::string_view message, std::span<const transport::Header> trailers) override;
  [[nodiscard]] std::size_t unsent() const override { return 0; }
  [[nodiscard]] std::size_t waiting() const override { return 0; }
  void pause(bool) override {}
  void freed(std::size_t) override {}

  void read();
  void go_on();  // handles the bytes read
  bool take_head();
  bool take_body(std::string* body);
  void serve(std::string body);
  MaybeFault read_deadline();
  // Runs `what` on the request, here or on another thread, depending on the time that `bytes` implies; then `then`,
  // unless this connection has gone meanwhile.
  void work(bool aside, std::size_t bytes, std::function<void(ApiRequest&)> what, void (ApiConnection::*then)());
  void gone_on();     // after work outside a turn
  void read_again();  // with a helper's result
  void begin_call();  // for a request that has been read
  void answer_call();
  void answer_written();
  void half_closed();
  void write();
  void answer(HttpAnswer answer);
  void refuse(const Fault& fault, int status = 0);  // 0: as the fault's code says
  void refuse_and_close(int status, const std::string& why);
  [[nodiscard]] std::string too_large() const;
  // Headers that let a page of another origin read the answer; `preflight`: and send the request.
  [[nodiscard]] std::string cors(bool preflight) const;
  void wait(State state, TimeNs time);
  void account();
  void watch();

  ApiConnections& all_;
  DataService& service_;
  Lane& lane_;
  const std::string peer_;
  transport::ByteStream stream_;
  State state_ = State::kHead;
  TimeNs since_;
  std::string in_;
  std::string out_;
  std::string rest_;        // of an answer, after out_
  std::size_t sent_ = 0;    // in out_
  std::size_t window_ = 0;  // position in out_ when the timer last restarted
  std::size_t called_ = 0;  // bytes of the request being answered, as received and as a call
  std::size_t held_ = 0;    // known to all_
  std::uint64_t body_ = 0;
  bool timed_ = false;  // the head has begun
  bool last_ = false;   // close after this answer
  bool broken_ = false;
  bool ended_ = false;   // the client sends no more
  bool modern_ = false;  // it speaks HTTP/1.1, not 1.0
  bool asked_ = false;   // has sent a complete request
  TimeNs moved_ = 0;     // when the client last sent or took bytes
  bool head_only_ = false;
  std::uint32_t watched_ = 0;
  std::string method_;
  std::string path_;
  std::string query_;
  std::vector<transport::Header> headers_;
  std::string request_id_;
  TimeNs deadline_ = kNever;  // set by the client
  bool chunked_ = false;      // the body is chunked
  ChunkedBody chunks_;
  Dialect dialect_ = Dialect::kOpenAi;
  std::shared_ptr<ApiRequest> request_;  // while it is being served
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::string answer_;  // of the call
  Fault fault_;         // of the call, if it failed
  bool finished_ = false;
  std::unique_ptr<transport::CallHandler> handler_;
};

}  // namespace arlo::gateway
