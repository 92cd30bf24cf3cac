// One HTTP/2 connection of a gRPC client, as bytes in and bytes out; for any number of concurrent unary calls.
//
// Rows that have been sent are never taken back: Triton 2.51 executes them anyway, and may crash when a cancellation
// meets its answer (docs/protocol.md). A caller that gives up drops the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

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

class ClientSession {
 public:
  using Done = std::function<void(Answer)>;

  ClientSession(std::string authority, const ClientLimits& limits, std::function<void()> wants_to_send);
  ~ClientSession();  // open calls are lost
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  // Starts a call and returns its stream. `path` outlives the call. `done` is called once, perhaps from within this
  // call, feed(), output() or the destructor. `traceparent`: a header; empty for none.
  std::int32_t call(std::string_view path, std::string message, Done done, std::string_view traceparent = {});
  // Resets it, if it is still open.
  void give_up(std::int32_t stream);
  // Whether a new call would be accepted: the server has not announced that it is leaving.
  [[nodiscard]] bool takes_calls() const;

  // Sets the reason for calls that are lost when this is deleted.
  void lost(std::string why);

  // As in ServerSession.
  bool feed(std::string_view bytes);
  bool output(std::string* out, std::size_t most);
  [[nodiscard]] bool over() const;
  [[nodiscard]] std::size_t calls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace arlo::transport
