// One HTTP/2 connection of a gRPC server.
//
// Calls are handed to a Service, which makes a CallHandler for each. The handler is notified of the call's messages, of
// the end of the client's data, and last of the end of the call. Answers may be given at any time before that, also
// from within these notifications; the connection's owner is notified of output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time.h"
#include "transport/frame_meter.h"
#include "transport/http2.h"

namespace arlo::transport {

struct Header {
  std::string name;
  std::string value;
};

// Limits for a client on a connection. Only the offender pays for an excess: its call or its connection ends.
struct Limits {
  std::uint32_t streams = 2048;                // open calls
  std::uint32_t header_bytes = 16 << 10;       // of a call's headers, plus 32 for each, as HTTP/2 counts
  std::uint32_t message_bytes = 64U << 20;     // of a message
  std::uint32_t stream_window = 1U << 20;      // bytes of a call in flight
  std::uint32_t connection_window = 4U << 20;  // of all calls together
  std::size_t held_bytes = 256U << 20;         // per connection: messages of open calls, whole or not, and answers
  std::size_t unread_bytes =
      1U << 20;  // answers to unary calls: while more bytes are unread, further such calls have to wait
  // Streams within frames.span that are reset right after opening, if they are more than half of those opened: a client
  // whose deadlines pass resets many, but not at once.
  std::uint32_t resets = 1000;
  TimeNs body_time = 60'000'000'000;  // for a message, and for the whole request of a unary call
  FrameMeter::Limits frames;
};

// The total memory of several connections. Above the limit, the connection that holds most gives up its largest call.
struct Memory {
  std::size_t limit = SIZE_MAX;
  std::size_t used = 0;
  std::size_t peak = 0;     // of `used`, since the last reset of this field
  std::size_t holders = 0;  // connections that use some
};

// One call, as its service sees it. It lives until closed() of its handler has returned.
class ServerCall {
 public:
  [[nodiscard]] virtual const std::string& path() const = 0;
  // The first header with this lower-case name; empty for none.
  [[nodiscard]] virtual std::string_view header(std::string_view name) const = 0;
  // The caller's address, the same for all calls of a connection.
  [[nodiscard]] virtual const std::string& peer() const = 0;
  // The client's deadline, by the clock passed to feed(); kNever for none.
  [[nodiscard]] virtual TimeNs deadline() const = 0;
  // Sends a message to the client. Not after finish().
  virtual void send(std::string message) = 0;
  // Ends the call with gRPC's status code, a text for people, and trailers. Once.
  virtual void finish(std::uint32_t status, std::string_view message, std::span<const Header> trailers) = 0;
  // Bytes, and messages, that wait for the client.
  [[nodiscard]] virtual std::size_t unsent() const = 0;
  [[nodiscard]] virtual std::size_t waiting() const = 0;
  // While paused, no messages come beyond those in flight; HTTP/2's flow control stops the client.
  virtual void pause(bool paused) = 0;
  // Reports that a handed-over message was freed. Messages not reported count until the call is over.
  virtual void freed(std::size_t bytes) = 0;

 protected:
  ~ServerCall() = default;
};

class CallHandler {
 public:
  virtual ~CallHandler() = default;
  virtual void message(std::string bytes) = 0;               // decompressed, if it was compressed
  virtual void half_closed() = 0;                            // no further message comes
  virtual void sent() {}                                     // the client has taken some of the unsent bytes
  [[nodiscard]] virtual bool unary() const { return true; }  // it waits for one message, and for nothing after it
  [[nodiscard]] virtual bool idle() const { return false; }  // nothing is under way for the client
  // The call is over. `finished`: its answer is on its way. Otherwise the client, or the connection, has gone.
  virtual void closed(bool finished) = 0;
};

class Service {
 public:
  // A call's headers have come. Null: no such method (UNIMPLEMENTED).
  virtual std::unique_ptr<CallHandler> begin(ServerCall& call) = 0;
  // Runs long work outside the thread of the connections; then `then` runs on that thread. The works of one `client`
  // take turns with those of others. By default both run at once.
  virtual void aside(const void* /*client*/, const std::function<void()>& work, const std::function<void()>& then) {
    work();
    then();
  }
  // The number of connections changed by this much.
  virtual void connected(int /*change*/) {}
  // A client exceeded a limit, and its call or its connection ends for it.
  virtual void offended(const std::string& /*peer*/, std::string_view /*limit*/) {}

 protected:
  ~Service() = default;
};

class ServerSession final : public Http2Session {
 public:
  // `wants_to_send`: as in Http2Session. `memory`: of all connections of a thread; it outlives this.
  ServerSession(Service& service, const Limits& limits, Memory& memory, std::string peer,
                std::function<void()> wants_to_send);
  ~ServerSession();

  // Takes received bytes. False: the connection is unusable once output() is sent.
  bool feed(std::string_view bytes, TimeNs now);
  // Appends bytes to send, up to about `most`. False: it failed, close at once.
  bool output(std::string* out, std::size_t most);
  // Announces that no further calls are accepted; calls under way, and those sent before the client heard this, end
  // normally.
  void go_away();
  // Whether something awaited has a time limit: then call tick() regularly.
  [[nodiscard]] bool awaits() const { return awaited_ != 0 || owing_ != 0 || meter_.within(); }
  // Ends calls that have taken too long. False as in feed().
  bool tick(TimeNs now);
  // Pings the client: its answer comes with feed().
  void ping();
  [[nodiscard]] bool greeted() const { return meter_.greeted(); }  // the client has sent the preface and its settings
  [[nodiscard]] bool called() const { return called_; }            // its service has accepted at least one call
  [[nodiscard]] std::size_t held() const { return held_; }
  [[nodiscard]] bool owes() const { return owing_ != 0; }  // answers that wait for the client
  // Gives up the call that holds most. False: none holds anything.
  bool shed();
  [[nodiscard]] std::size_t calls() const;
  // Whether all its calls wait for the client.
  [[nodiscard]] bool waits_for_client() const;

 private:
  class Answering;
  class Call;

  static ServerSession& self(void* user) { return *static_cast<ServerSession*>(user); }
  static int on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user);
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t flags, void* user);
  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user);
  static int on_data(nghttp2_session*, std::uint8_t flags, std::int32_t stream, const std::uint8_t* data,
                     std::size_t size, void* user);
  static int on_close(nghttp2_session*, std::int32_t stream, std::uint32_t error, void* user);
  static int on_sent(nghttp2_session*, const nghttp2_frame* frame, void* user);
  static ssize_t read_data(nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most, std::uint32_t* flags,
                           nghttp2_data_source* source, void*);

  Call* find(std::int32_t stream);
  void count_reset(bool at_once);
  void throw_out(std::string_view limit);
  void end(Call& call, bool finished);
  void let_on();

  Service& service_;
  const Limits limits_;
  TimeNs now_ = 0;
  std::list<Call> calls_;  // open calls
  Call* found_ = nullptr;  // the call found last
  Memory& memory_;
  const std::string peer_;
  std::size_t held_ = 0;             // by the calls, in memory_.used
  std::size_t owing_ = 0;            // calls with unread answers
  std::size_t unread_ = 0;           // bytes of these answers
  std::deque<std::int32_t> behind_;  // streams whose calls wait until unread_ falls, in order of arrival
  std::size_t awaited_ = 0;          // calls with a time limit for the client's data
  FrameMeter meter_;
  bool called_ = false;
  bool draining_ = false;
  bool thrown_out_ = false;
  bool calm_ = false;         // its offence has been reported
  std::uint32_t resets_ = 0;  // since counted_since_
  std::uint64_t cost_ = 0;    // of these resets, in tenths of an immediate one
  std::uint32_t opened_ = 0;
  TimeNs counted_since_ = 0;
};

}  // namespace arlo::transport
