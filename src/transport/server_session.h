// One HTTP/2 connection of a gRPC server, as bytes in and bytes out: no sockets, no clock reads, no threads of its own.
//
// Calls are handed to a Service, which makes a CallHandler for each. A call's handler hears of its messages, of the end
// of what the client sends, and last of the end of the call. Answers may be given at any time before that, also from
// within these; the connection's owner is told that there is something to send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time.h"
#include "transport/frame_meter.h"

namespace arlo::transport {

struct Header {
  std::string name;
  std::string value;
};

// What a client may take of a connection. Above one of these the offender alone pays: its call, or its connection.
struct Limits {
  std::uint32_t streams = 2048;                // open calls
  std::uint32_t header_bytes = 16 << 10;       // of a call's headers, with 32 for each, as HTTP/2 counts
  std::uint32_t message_bytes = 64U << 20;     // of a message
  std::uint32_t stream_window = 1U << 20;      // bytes of a call that may be under way
  std::uint32_t connection_window = 4U << 20;  // of all calls together
  std::size_t held_bytes = 256U << 20;         // of a connection: messages of open calls, whole or not, and answers
  std::size_t unread_bytes =
      1U << 20;  // of answers to unary calls: while more of them wait, further such calls do, too
  // Of streams within frames.span, where they are more than half of those opened, and come at once after these: a
  // client whose deadlines pass resets many, but not at once.
  std::uint32_t resets = 1000;
  TimeNs body_time = 60'000'000'000;  // for a message, and for the whole request of a unary call
  FrameMeter::Limits frames;
};

// What several connections hold together. Above the limit the connection that holds most gives up the call that holds
// most of it.
struct Memory {
  std::size_t limit = SIZE_MAX;
  std::size_t used = 0;
  std::size_t peak = 0;     // of `used`, since somebody set it back
  std::size_t holders = 0;  // connections that use some
};

// One call, as its service sees it. It is there until closed() of its handler has returned.
class ServerCall {
 public:
  [[nodiscard]] virtual const std::string& path() const = 0;
  // The first header of this name, in lower case; empty for none.
  [[nodiscard]] virtual std::string_view header(std::string_view name) const = 0;
  // Who calls: its address, the same for all calls of a connection.
  [[nodiscard]] virtual const std::string& peer() const = 0;
  // The client's, by the clock that feed() is told; kNever for none.
  [[nodiscard]] virtual TimeNs deadline() const = 0;
  // A message to the client. Nothing after finish().
  virtual void send(std::string message) = 0;
  // The end: gRPC's status code, a text for people, and trailers. Once.
  virtual void finish(std::uint32_t status, std::string_view message, std::span<const Header> trailers) = 0;
  // Bytes, and messages, that wait for the client.
  [[nodiscard]] virtual std::size_t unsent() const = 0;
  [[nodiscard]] virtual std::size_t waiting() const = 0;
  // While it is paused no messages come beyond those that are under way; HTTP/2's flow control stops the client.
  virtual void pause(bool paused) = 0;
  // A message that was handed over is gone. Those of which nothing is said here count until the call is over.
  virtual void freed(std::size_t bytes) = 0;

 protected:
  ~ServerCall() = default;
};

class CallHandler {
 public:
  virtual ~CallHandler() = default;
  virtual void message(std::string bytes) = 0;               // opened, where it was compressed
  virtual void half_closed() = 0;                            // no further message comes
  virtual void sent() {}                                     // some of what waited for the client has been taken
  [[nodiscard]] virtual bool unary() const { return true; }  // it waits for one message, and for nothing after it
  [[nodiscard]] virtual bool idle() const { return false; }  // nothing is under way for the client
  // The call is over: `finished`, and what was sent is on its way. Otherwise the client, or the connection, has gone.
  virtual void closed(bool finished) = 0;
};

class Service {
 public:
  // The headers of a call have come. Null: there is no such method (UNIMPLEMENTED).
  virtual std::unique_ptr<CallHandler> begin(ServerCall& call) = 0;
  // Work that takes long, to be done beside the thread of the connections; then `then` is called on it. The works of
  // one `client` take turns with those of others. By default both are done at once.
  virtual void aside(const void* /*client*/, const std::function<void()>& work, const std::function<void()>& then) {
    work();
    then();
  }
  // So many more connections, or fewer.
  virtual void connections(int /*change*/) {}
  // A client went over a limit, and its call or its connection ends for it.
  virtual void offended(const std::string& /*peer*/, std::string_view /*limit*/) {}

 protected:
  ~Service() = default;
};

class ServerSession {
 public:
  // `wants_to_send`: there is something in output(), told again only after that was asked for. `memory`: of all
  // connections of a thread; it outlives this.
  ServerSession(Service& service, const Limits& limits, Memory& memory, std::string peer,
                std::function<void()> wants_to_send);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  // Bytes that have come. False: the connection is of no further use once output() is sent.
  bool feed(std::string_view bytes, TimeNs now);
  // Appends what is to be sent, up to about `most` bytes. False: it broke, close at once.
  bool output(std::string* out, std::size_t most);
  // Says that no further calls are taken; those under way, and those that the client sent before it heard, end as they
  // would.
  void go_away();
  // Whether something is awaited that may take no longer than it may: then tick() is to be called now and then.
  [[nodiscard]] bool awaits() const;
  // Ends what has taken too long. False as of feed().
  bool tick(TimeNs now);
  // Asks whether the client is there: what it answers comes with feed().
  void ping();
  [[nodiscard]] bool greeted() const;  // the client has begun to speak HTTP/2, and more than half a sentence
  [[nodiscard]] bool called() const;   // there has been a call that its service took
  [[nodiscard]] std::size_t held() const;
  [[nodiscard]] bool owes() const;  // answers that wait for the client
  // Gives up the call that holds most. False: none holds anything.
  bool shed();
  // Nothing is to be read or written any more.
  [[nodiscard]] bool over() const;
  [[nodiscard]] std::size_t calls() const;
  // All its calls go on only when the client does.
  [[nodiscard]] bool waits_for_client() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace arlo::transport
