// Channels and servers over TCP, all on one loop.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/channel.h"
#include "transport/listener.h"
#include "transport/server.h"

namespace arlo::transport {
namespace {

// Answers with what it got; /hold never, /work after it has worked for a while.
class SocketEcho final : public Service {
 public:
  std::unique_ptr<CallHandler> begin(ServerCall& call) override { return std::make_unique<Handler>(*this, call); }
  int begun = 0;
  int ended = 0;
  std::function<void()> worked;

 private:
  class Handler final : public CallHandler {
   public:
    Handler(SocketEcho& echo, ServerCall& call) : echo_(echo), call_(call) { ++echo_.begun; }
    void message(std::string bytes) override { bytes_ = std::move(bytes); }
    void half_closed() override {
      if (call_.path() == "/hold") return;
      if (call_.path() == "/work") {
        for (const TimeNs end = now_ns() + 200'000; now_ns() < end;) {
        }
        echo_.worked();
      }
      if (call_.path() == "/refuse") {
        call_.finish(9, "not now", {});
        return;
      }
      if (call_.path() != "/empty") call_.send(std::move(bytes_));
      call_.finish(0, "", {});
    }
    void closed(bool) override { ++echo_.ended; }

   private:
    SocketEcho& echo_;
    ServerCall& call_;
    std::string bytes_;
  };
};

// A server on an address of its own.
class Port {
 public:
  Port(Loop& loop, Service& service, const std::string& address, const ServerOptions& options)
      : server_(loop, service, options),
        listening_(listen_on(address)),
        listener_(std::in_place, loop, listening_.fd, [this](int fd) { server_.adopt(fd); }) {}

  [[nodiscard]] const std::string& address() const { return listening_.address; }
  [[nodiscard]] std::uint16_t port() const {
    return static_cast<std::uint16_t>(std::stoi(address().substr(address().rfind(':') + 1)));
  }
  [[nodiscard]] std::size_t connections() const { return server_.connections(); }
  void drain() {
    listener_.reset();
    server_.drain();
  }

 private:
  Server server_;
  Listening listening_;
  std::optional<Listener> listener_;
};

class TransportSocket : public testing::Test, public Loop::Timer {
 protected:
  void due() override { loop_.stop(); }

  // Runs the loop until `wanted` calls have ended, at most five seconds.
  void until(std::size_t wanted) {
    if (answers_.size() >= wanted) return;
    wanted_ = wanted;
    loop_.set(*this, now_ns() + 5 * 1000 * kMs);
    loop_.run();
    loop_.clear(*this);
    wanted_ = SIZE_MAX;
    ASSERT_GE(answers_.size(), wanted) << "not within five seconds";
  }
  // The loop for a while, and some turns of it at least, however busy the machine is.
  void turn(TimeNs time) {
    constexpr int kTurns = 10;
    for (int i = 0; i < kTurns; ++i) {
      loop_.set(*this, now_ns() + time / kTurns);
      loop_.run();
    }
  }
  // The loop until that is so, at most ten seconds.
  void until(const std::function<bool()>& so) {
    for (const TimeNs end = now_ns() + 10 * 1000 * kMs; !so() && now_ns() < end;) turn(1000 * kMs / 50);
    ASSERT_TRUE(so()) << "not within ten seconds";
  }
  std::unique_ptr<Port> serve(const std::string& address = "127.0.0.1:0", const ServerOptions& options = {}) {
    return std::make_unique<Port>(loop_, echo_, address, options);
  }
  std::unique_ptr<Channel> channel(const std::string& address) {
    ChannelOptions options;
    options.address = address;
    return std::make_unique<Channel>(loop_, options);
  }
  void call(Channel& channel, const char* path, std::string message) {
    channel.call(path, std::move(message), [this](Answer answer) {
      answers_.push_back(std::move(answer));
      if (answers_.size() >= wanted_) loop_.stop();
    });
  }

  Loop loop_;
  SocketEcho echo_;
  std::vector<Answer> answers_;
  std::size_t wanted_ = SIZE_MAX;  // of answers, that end the loop
};

// What a turn of the loop does, and for how long.
class Busy final : public Loop::Watch {
 public:
  Busy(Loop& loop, std::string& order, char name, TimeNs takes)
      : loop_(loop), order_(order), name_(name), takes_(takes) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends_) != 0) std::abort();
    loop_.watch(ends_[0], EPOLLIN, *this);
  }
  ~Busy() {
    loop_.forget(ends_[0], *this);
    for (const int end : ends_) close(end);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

  void wake() { ASSERT_EQ(write(ends_[1], "x", 1), 1); }
  void ready(std::uint32_t) override {
    char byte = 0;
    if (read(ends_[0], &byte, 1) == 1) order_ += name_;
    const TimeNs end = now_ns() + takes_;
    while (now_ns() < end) {
    }
    if (then) then();
  }
  std::function<void()> then;

 private:
  Loop& loop_;
  std::string& order_;
  const char name_;
  const TimeNs takes_;
  int ends_[2];
};

TEST(TransportLoop, ThoseThatYieldComeLastAndForSomeOfTheTurnOnly) {
  Loop loop;
  std::string order;
  constexpr TimeNs kLong = 2'000'000;
  Busy first(loop, order, '1', kLong);
  Busy second(loop, order, '2', kLong);
  Busy other(loop, order, 'o', 0);
  first.yields = second.yields = true;
  first.wake();
  second.wake();
  other.wake();
  // While the first takes its time another has something again: that is heard before the second.
  first.then = [&] { other.wake(); };
  second.then = [&] { loop.stop(); };
  loop.run();
  EXPECT_EQ(order, "o1o2");
}

// Whatever waits in its socket, a connection has its turn, and then others have theirs.
TEST_F(TransportSocket, AConnectionThatMakesWorkYields) {
  constexpr std::size_t kCalls = 8;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  Server server(loop_, echo_, {});
  server.adopt(ends[0]);
  ClientSession client("a", {}, [] {});
  const auto say = [&] {
    std::string bytes;
    return client.output(&bytes, 1 << 20) &&
           write(ends[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  };
  ASSERT_TRUE(say());
  std::string heard;  // how much may be under way
  until([&] {
    char some[1000];
    if (const ssize_t count = read(ends[1], some, sizeof some); count > 0) {
      heard.append(some, static_cast<std::size_t>(count));
    }
    return !heard.empty();
  });
  ASSERT_TRUE(client.feed(heard));

  for (std::size_t i = 0; i < kCalls; ++i) {  // one behind the other
    client.call("/work", std::string(17 << 10, 'w'), [](const Answer&) {});
    ASSERT_TRUE(say());
  }
  std::string order;
  Busy other(loop_, order, 'o', 0);
  other.then = [&] { other.wake(); };
  other.wake();
  std::size_t worked = 0;
  echo_.worked = [&] {
    order += 'w';
    ++worked;
  };
  until([&] { return worked == kCalls; });
  EXPECT_EQ(order.find("wwww"), std::string::npos);
  close(ends[1]);
}

TEST_F(TransportSocket, ManyCallsOnOneConnection) {
  const auto server = serve();
  const auto client = channel(server->address());
  for (int i = 0; i < 500; ++i) call(*client, "/echo", std::string(static_cast<std::size_t>(i), 'a'));
  until(500);
  std::vector<int> seen(500);
  for (const Answer& answer : answers_) {
    ASSERT_EQ(answer.status, 0U) << answer.message;
    ++seen[answer.bytes.size()];
  }
  EXPECT_EQ(seen, std::vector<int>(500, 1));
  EXPECT_EQ(server->connections(), 1U);
}

TEST_F(TransportSocket, LargeMessagesBothWays) {
  const auto server = serve();
  const auto client = channel(server->address());
  for (int i = 0; i < 4; ++i) call(*client, "/echo", std::string(10U << 20, static_cast<char>('a' + i)));
  call(*client, "/echo", "small");
  until(5);
  for (const Answer& answer : answers_) ASSERT_EQ(answer.status, 0U) << answer.message;
  EXPECT_EQ(answers_.front().bytes, "small");  // it does not wait for the large ones
  EXPECT_EQ(answers_.back().bytes.size(), 10U << 20);
}

TEST_F(TransportSocket, FaultsAreTold) {
  const auto server = serve();
  const auto client = channel(server->address());
  call(*client, "/refuse", "x");
  until(1);
  EXPECT_EQ(answers_[0].status, 9U);
  EXPECT_EQ(answers_[0].message, "not now");
  EXPECT_FALSE(answers_[0].lost);
  call(*client, "/empty", "x");
  until(2);
  EXPECT_EQ(answers_[1].status, 13U);
}

TEST_F(TransportSocket, NobodyListens) {
  const std::string address = serve()->address();
  const auto client = channel(address);
  call(*client, "/echo", "x");
  until(1);
  EXPECT_TRUE(answers_[0].lost);
  EXPECT_TRUE(answers_[0].unsent);
  EXPECT_EQ(answers_[0].message, address + ": Connection refused");
  call(*client, "/echo", "x");  // refused at once: it was tried just now
  until(2);
  const auto server = serve(address);
  turn(1000 * kMs / 5);
  call(*client, "/echo", "x");
  until(3);
  EXPECT_EQ(answers_[2].status, 0U);
}

TEST_F(TransportSocket, AServerThatDiesLosesWhatItHad) {
  auto server = serve();
  const auto address = server->address();
  const auto client = channel(address);
  call(*client, "/echo", "x");
  call(*client, "/hold", "x");
  until(1);
  server.reset();
  until(2);
  EXPECT_TRUE(answers_[1].lost);
  EXPECT_FALSE(answers_[1].unsent);
  EXPECT_EQ(echo_.ended, 2);
  server = serve(address);
  call(*client, "/echo", "again");
  until(3);
  EXPECT_EQ(answers_[2].bytes, "again");
}

TEST_F(TransportSocket, ADrainingServerEndsItsCallsAndTakesNoNewOnes) {
  auto server = serve();
  const auto client = channel(server->address());
  call(*client, "/hold", "x");
  call(*client, "/echo", "x");
  until(1);
  server->drain();
  turn(1000 * kMs / 20);
  call(*client, "/echo", "x");
  until(3);
  EXPECT_TRUE(answers_.back().lost);
}

TEST_F(TransportSocket, AChannelThatGoesLosesItsCalls) {
  const auto server = serve();
  auto client = channel(server->address());
  call(*client, "/hold", "x");
  turn(1000 * kMs / 20);
  client.reset();
  EXPECT_EQ(answers_.size(), 1U);
  turn(1000 * kMs / 20);
  EXPECT_EQ(echo_.ended, 1);
  EXPECT_EQ(server->connections(), 0U);
}

int connected(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

TEST_F(TransportSocket, WhoSaysNothingIsPutOut) {
  ServerOptions options;
  options.preface_time = 1000 * kMs / 10;
  const auto server = serve("127.0.0.1:0", options);
  const int fd = connected(server->port());
  char byte = 0;
  until([&] { return recv(fd, &byte, 1, MSG_DONTWAIT) == 0; });
  EXPECT_EQ(server->connections(), 0U);
  close(fd);
}

TEST_F(TransportSocket, WhatIsNoHttp2IsPutOut) {
  const auto server = serve();
  const int fd = connected(server->port());
  const std::string request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  ASSERT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  turn(1000 * kMs / 20);
  EXPECT_EQ(server->connections(), 0U);
  close(fd);
}

TEST_F(TransportSocket, ConnectionsAreBounded) {
  ServerOptions options;
  options.connections = 3;
  const auto server = serve("127.0.0.1:0", options);
  std::vector<int> fds;
  for (int i = 0; i < 6; ++i) fds.push_back(connected(server->port()));
  turn(1000 * kMs / 20);
  EXPECT_EQ(server->connections(), 3U);
  for (const int fd : fds) close(fd);
  turn(1000 * kMs / 20);
  EXPECT_EQ(server->connections(), 0U);
}

TEST_F(TransportSocket, ConnectionsThatComeAtOnceAreTakenByAndBy) {
  const auto server = serve();
  const auto client = channel(server->address());
  call(*client, "/a", "before");
  until(1);
  constexpr std::size_t kMany = 100;
  std::vector<int> fds;
  while (fds.size() < kMany) fds.push_back(connected(server->port()));
  call(*client, "/a", "between");
  until(2);
  until([&] { return server->connections() == kMany + 1; });
  for (const int fd : fds) close(fd);
  until([&] { return server->connections() == 1; });
}

TEST_F(TransportSocket, WithoutDescriptorsConnectionsWait) {
  const auto server = serve();
  const int fd = connected(server->port());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(fd) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::clock_t began = std::clock();
  turn(1000 * kMs / 2);
  EXPECT_LT(std::clock() - began, CLOCKS_PER_SEC / 10);  // it did not spin
  EXPECT_EQ(server->connections(), 0U);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  turn(1000 * kMs / 5);
  EXPECT_EQ(server->connections(), 1U);
  close(fd);
}

TEST_F(TransportSocket, AddressesOfAllKinds) {
  const std::string path = testing::TempDir() + "arlo-" + std::to_string(getpid()) + ".sock";
  std::vector<std::string> addresses{"127.0.0.1:0", "localhost:0", "unix:" + path, "unix:" + path};
  if (access("/proc/net/if_inet6", F_OK) == 0) addresses.emplace_back("[::1]:0");
  for (const auto& address : addresses) {
    answers_.clear();
    const auto server = serve(address);
    const auto client = channel(server->address());
    call(*client, "/echo", address);
    until(1);
    ASSERT_EQ(answers_[0].status, 0U) << answers_[0].message;
    EXPECT_EQ(answers_[0].bytes, address);
  }
  unlink(path.c_str());
}

TEST_F(TransportSocket, AddressesThatAreNone) {
  const auto server = serve();
  EXPECT_THROW(serve(server->address()), std::runtime_error);  // in use
  EXPECT_THROW(serve("nowhere"), std::runtime_error);
  for (const auto* address : {"nowhere", "no.such.host.invalid:1", "[::1:1"}) {
    answers_.clear();
    const auto client = channel(address);
    call(*client, "/echo", "x");
    until(1);
    EXPECT_TRUE(answers_[0].unsent) << address;
    EXPECT_FALSE(answers_[0].message.empty());
  }
}

TEST_F(TransportSocket, AnIdleConnectionMakesRoom) {
  ServerOptions options;
  options.connections = 2;
  const auto server = serve("127.0.0.1:0", options);
  const auto busy = channel(server->address());
  call(*busy, "/hold", "x");
  turn(1000 * kMs / 20);
  const int idle = connected(server->port());
  turn(1000 * kMs / 20);
  const auto newcomer = channel(server->address());
  call(*newcomer, "/hold", "x");
  turn(1000 * kMs / 20);
  EXPECT_EQ(server->connections(), 2U);
  EXPECT_EQ(echo_.begun, 2);
  const auto refused = channel(server->address());  // both have calls
  call(*refused, "/echo", "x");
  until(1);
  EXPECT_TRUE(answers_[0].lost);
  close(idle);
}

TEST_F(TransportSocket, OfAllConnectionsTheOneThatHoldsMostPays) {
  ServerOptions options;
  options.memory = 3U << 20;
  const auto server = serve("127.0.0.1:0", options);
  const auto small = channel(server->address());
  const auto large = channel(server->address());
  call(*small, "/hold", std::string(500'000, 's'));
  turn(1000 * kMs / 20);
  for (int i = 0; i < 3; ++i) call(*large, "/hold", std::string(1'000'000, 'l'));
  until(1);
  turn(1000 * kMs / 5);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].status, 8U);
  call(*small, "/echo", "still served");
  until(2);
  EXPECT_EQ(answers_[1].bytes, "still served");
}

TEST_F(TransportSocket, SilentClientsArePinged) {
  ServerOptions options;
  options.ping_after = 1000 * kMs / 2;
  const auto server = serve("127.0.0.1:0", options);
  const auto client = channel(server->address());  // answers pings
  call(*client, "/echo", "x");
  until(1);
  const int deaf = connected(server->port());
  const std::string hello = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9);
  ASSERT_EQ(send(deaf, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  char said[1024];  // before it is put out
  until([&] { return recv(deaf, said, sizeof said, MSG_DONTWAIT) == 0 || errno == ECONNRESET; });
  EXPECT_EQ(server->connections(), 1U);
  EXPECT_TRUE(client->connected());
  close(deaf);
}

TEST_F(TransportSocket, OldConnectionsAreToldToGo) {
  ServerOptions options;
  options.oldest = 1000 * kMs / 2;
  const auto server = serve("127.0.0.1:0", options);
  const auto client = channel(server->address());
  call(*client, "/echo", "x");
  until(1);
  until([&] { return server->connections() == 0; });
  call(*client, "/echo", "over a new one");
  until(2);
  EXPECT_EQ(answers_[1].bytes, "over a new one");
}

TEST_F(TransportSocket, ACallIsGivenUp) {
  const auto server = serve();
  const auto client = channel(server->address());
  call(*client, "/echo", "x");
  until(1);
  const auto id = client->call("/hold", "x", [this](Answer answer) {
    answers_.push_back(std::move(answer));
    if (answers_.size() >= wanted_) loop_.stop();
  });
  turn(1000 * kMs / 20);
  client->give_up(id);
  until(2);
  EXPECT_TRUE(answers_[1].lost);
  turn(1000 * kMs / 20);
  EXPECT_EQ(echo_.ended, 2);
}

}  // namespace
}  // namespace arlo::transport
