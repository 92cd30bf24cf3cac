// One HTTP/2 connection of a gRPC client, for any number of concurrent unary calls.
//
// Rows that have been sent are never taken back: Triton 2.51 executes them anyway, and may crash when a cancellation
// meets its answer (docs/protocol.md). A caller that gives up drops the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <utility>

#include "transport/http2.h"

namespace arlo::transport {

struct Answer {
  std::uint32_t status = 0;  // gRPC's code
  std::string message;       // reason, if status is not 0
  std::string bytes;
  bool lost = false;    // no answer: the connection ended, or the server did not accept the call
  bool unsent = false;  // the server has certainly not begun the call
};

struct ClientLimits {
  std::uint32_t message_bytes = 0x7fffffff;
  std::uint32_t stream_window = 16U << 20;  // bytes of an answer in flight
  std::uint32_t connection_window = 64U << 20;
};

class ClientSession final : public Http2Session {
 public:
  using Done = std::function<void(Answer)>;

  ClientSession(std::string authority, const ClientLimits& limits, std::function<void()> wants_to_send);
  ~ClientSession();  // open calls are lost

  // Starts a call and returns its stream. `path` outlives the call. `done` is called once, perhaps from within this
  // call, feed(), output() or the destructor. `traceparent`: a header; empty for none.
  std::int32_t call(std::string_view path, std::string message, Done done, std::string_view traceparent = {});
  // Resets it, if it is still open.
  void give_up(std::int32_t stream);
  // Whether a new call would be accepted: the server has not announced that it is leaving.
  [[nodiscard]] bool takes_calls() const { return nghttp2_session_check_request_allowed(session_) != 0; }

  // Sets the reason for calls that are lost when this is deleted.
  void lost(std::string why) { why_lost_ = std::move(why); }

  // As in ServerSession.
  bool feed(std::string_view bytes);
  bool output(std::string* out, std::size_t most) { return append(out, most); }
  [[nodiscard]] std::size_t calls() const;

 private:
  struct Call;

  static ClientSession& self(void* user) { return *static_cast<ClientSession*>(user); }
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t flags, void* user);
  static int on_data(nghttp2_session*, std::uint8_t flags, std::int32_t stream, const std::uint8_t* data,
                     std::size_t size, void* user);
  static int on_close(nghttp2_session*, std::int32_t stream, std::uint32_t error, void* user);
  static ssize_t read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most, std::uint32_t* flags,
                           nghttp2_data_source* source, void*);
  [[nodiscard]] Call* find(std::int32_t stream) const;
  void end(Call& call, std::uint32_t error);

  const std::string authority_;
  const ClientLimits limits_;
  std::list<Call> calls_;  // open calls
  std::string why_lost_ = "the connection is closed";
};

}  // namespace arlo::transport
