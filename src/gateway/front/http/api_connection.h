// One HTTP/1.1 connection of the API's port. One request at a time: what a client sends ahead waits, and beyond a
// little of it in the client's own socket. All on the thread of the lane.
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
#include "gateway/front/http/routes.h"
#include "transport/server_session.h"
#include "transport/stream.h"

namespace arlo::gateway {

struct ApiLimits {
  bool probes = false;          // there are /metrics, /livez and /readyz, and nothing else
  std::size_t connections = 0;  // of a lane
  std::size_t sharers = 1;      // lanes of all ports, which share the limit of open files
  std::size_t memory = 0;       // bytes of requests and answers of a lane's connections
  std::size_t head_bytes = 0;
  std::size_t body_bytes = 0;
  TimeNs head_time = 0;              // from a head's first byte to its last
  TimeNs body_time = 0;              // of a body; for a client to take an answer, or the next part of a long one
  TimeNs idle_time = 0;              // between requests
  TimeNs first_time = 0;             // to a connection's first words, with those of TLS
  transport::TlsContext tls;         // null: in the clear
  std::vector<std::string> origins;  // of pages in browsers that may ask; "*": any
};

class ApiConnection;

// Those of a lane, as one of them sees them.
class ApiConnections {
 public:
  [[nodiscard]] const ApiLimits& limits() const { return limits_; }
  virtual void close(ApiConnection& connection) = 0;  // it is gone then
  [[nodiscard]] virtual bool draining() const = 0;
  // Above the limit of memory: those go that hold most and take nothing of their answers. False: it is still above.
  virtual bool make_room_in_memory() = 0;

  std::size_t held = 0;  // bytes, of all of them

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

  // What it is worth when there is no room for others; since when its state is what it is.
  enum class Wanted : std::uint8_t { kSilent, kIdle, kSlow, kBusy };
  [[nodiscard]] Wanted wanted(TimeNs now) const;
  [[nodiscard]] TimeNs since() const { return since_; }
  [[nodiscard]] bool idle() const { return state_ == State::kClosing || (state_ == State::kHead && in_.empty()); }
  void end_with_answer() { last_ = true; }  // that it waits for
  // Its client has taken nothing of an answer, or sent nothing of a body, for a while.
  [[nodiscard]] bool stalled(TimeNs now) const;
  [[nodiscard]] std::size_t held() const { return held_; }

  void ready(std::uint32_t events) override;
  void turn_ends() override;
  void due() override;

 private:
  enum class State : std::uint8_t { kHead, kBody, kBusy, kSending, kClosing };

  // The call that the request becomes: its service answers it as any other.
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
  void go_on();  // with what has been read
  bool take_head();
  bool take_body(std::string* body);
  void serve(std::string body);
  MaybeFault read_deadline();
  // Works on the request, here or on another thread, where `bytes` say how long it takes; then `then`, unless this has
  // gone meanwhile.
  void work(bool aside, std::size_t bytes, std::function<void(ApiRequest&)> what, void (ApiConnection::*then)());
  void gone_on();     // after what was not of a turn
  void read_again();  // with what a helper made
  void begin_call();  // of a request that has been read
  void answer_call();
  void answer_written();
  void half_closed();
  void write();
  void answer(int status, ApiAnswer answer);
  void refuse(const Fault& fault);
  void refuse_and_close(int status, const std::string& why);
  [[nodiscard]] std::string too_large() const;
  // Headers that let a page of another origin read the answer; `preflight`: and ask at all.
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
  std::string rest_;        // of an answer, behind out_
  std::size_t sent_ = 0;    // of out_
  std::size_t window_ = 0;  // of that, when the time for it began anew
  std::size_t called_ = 0;  // bytes of the request that is answered, as it came and as a call
  std::size_t held_ = 0;    // that all_ knows of
  std::uint64_t body_ = 0;
  bool timed_ = false;  // the head has begun
  bool last_ = false;   // the connection ends with this answer
  bool broken_ = false;
  bool ended_ = false;   // the client sends no more
  bool modern_ = false;  // it speaks HTTP/1.1, not 1.0
  bool asked_ = false;   // at least once, and in full
  TimeNs moved_ = 0;     // when it last sent something, or took some of an answer
  bool head_only_ = false;
  std::uint32_t watched_ = 0;
  std::string method_;
  std::string path_;
  std::string query_;
  std::vector<transport::Header> headers_;
  std::string request_id_;
  TimeNs deadline_ = kNever;  // that the client says
  bool chunked_ = false;      // the body comes so
  ChunkedBody chunks_;
  Dialect dialect_ = Dialect::kOpenAi;
  std::shared_ptr<ApiRequest> request_;  // while it is asked for
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::string answer_;  // of the call
  Fault fault_;         // of the call, where it has one
  bool finished_ = false;
  std::unique_ptr<transport::CallHandler> handler_;
};

}  // namespace arlo::gateway
