// A server's connection against nghttp2's client, bytes handed over in memory.
#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>
#include <zlib.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "transport/grpc_message.h"
#include "transport/server_session.h"
#include "transport_client.h"

namespace arlo::transport {
namespace {

std::string framed(const std::string& message) { return std::string(text_of(prefix_of(message.size()))) + message; }

// Echoes: /echo each message at once, /late what came when the client has ended, /hold nothing, /big 5 MB.
class Echo final : public Service {
 public:
  std::unique_ptr<CallHandler> begin(ServerCall& call) override {
    if (call.path() == "/none") return nullptr;
    ++begun;
    return std::make_unique<Handler>(*this, call);
  }

  int begun = 0;
  int finished = 0;   // closed(true)
  int cancelled = 0;  // closed(false)
  std::vector<ServerCall*> open;
  TimeNs deadline = 0;
  std::string agent;

 private:
  class Handler final : public CallHandler {
   public:
    Handler(Echo& echo, ServerCall& call) : echo_(echo), call_(call) {
      echo_.open.push_back(&call);
      echo_.deadline = call.deadline();
      echo_.agent = call.header("user-agent");
    }
    void message(std::string bytes) override {
      if (call_.path() == "/echo") {
        call_.send(std::move(bytes));
      } else {
        kept_ += bytes;
      }
    }
    void half_closed() override {
      if (call_.path() == "/hold") return;
      if (call_.path() == "/late") call_.send(kept_);
      if (call_.path() == "/big") call_.send(std::string(5U << 20, 'b'));
      const std::vector<Header> trailers{{"arlo-more", "x"}};
      if (call_.path() == "/bad") {
        call_.finish(3, "no good: 100 %\n", {});
      } else {
        call_.finish(0, "", trailers);
      }
    }
    void closed(bool finished) override {
      (finished ? echo_.finished : echo_.cancelled) += 1;
      std::erase(echo_.open, &call_);
    }

   private:
    Echo& echo_;
    ServerCall& call_;
    std::string kept_;
  };
};

class TransportSession : public testing::Test {
 protected:
  static Limits small() {
    Limits limits;
    limits.message_bytes = 1000;
    limits.header_bytes = 2000;
    limits.resets = 20;
    return limits;
  }
  Echo echo_;
  int told_ = 0;
  Memory memory_;
  ServerSession server_{echo_, small(), memory_, "test", [this] { ++told_; }};
  Client client_{server_};
};

TEST_F(TransportSession, UnaryCall) {
  const auto stream = client_.call("/late", framed("hello"), true, {{"grpc-timeout", "5m"}, {"user-agent", "test"}});
  ASSERT_TRUE(client_.talk());
  const Reply& reply = client_.replies[stream];
  EXPECT_EQ(reply.headers.at(":status"), "200");
  EXPECT_EQ(reply.headers.at("grpc-status"), "0");
  EXPECT_EQ(reply.headers.at("arlo-more"), "x");
  EXPECT_EQ(reply.data, framed("hello"));
  EXPECT_TRUE(reply.closed);
  EXPECT_EQ(reply.error, 0U);
  EXPECT_EQ(echo_.finished, 1);
  EXPECT_EQ(echo_.deadline, 1000 + 5'000'000);
  EXPECT_EQ(echo_.agent, "test");
  EXPECT_GE(told_, 1);
  EXPECT_EQ(server_.calls(), 0U);
}

TEST_F(TransportSession, FaultsAreTrailersAlone) {
  const auto none = client_.call("/none", framed("x"));
  const auto bad = client_.call("/bad", framed("x"));
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[none].headers.at("grpc-status"), "12");
  EXPECT_EQ(client_.replies[bad].headers.at("grpc-status"), "3");
  EXPECT_EQ(client_.replies[bad].headers.at("grpc-message"), "no good: 100 %25%0A");
  EXPECT_TRUE(client_.replies[bad].data.empty());
}

TEST_F(TransportSession, WhatIsNoGrpcIsRefused) {
  const auto get = client_.call("/late", "", true, {{":method", "GET"}});
  const auto json = client_.call("/late", "{}", true, {{"content-type", "application/json"}});
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[get].headers.at(":status"), "405");
  EXPECT_EQ(client_.replies[json].headers.at(":status"), "415");
  EXPECT_EQ(echo_.begun, 0);
}

TEST_F(TransportSession, MessagesGoToAndFro) {
  const auto stream = client_.call("/echo", framed("one") + framed("two"), false);
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[stream].data, framed("one") + framed("two"));
  EXPECT_FALSE(client_.replies[stream].closed);
  client_.reset(stream);
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(echo_.cancelled, 1);
  EXPECT_TRUE(echo_.open.empty());
}

TEST_F(TransportSession, AnAnswerLargerThanAllWindows) {
  const auto stream = client_.call("/big", framed("x"));
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[stream].data.size(), (5U << 20) + kPrefixBytes);
  EXPECT_EQ(client_.replies[stream].headers.at("grpc-status"), "0");
}

TEST_F(TransportSession, TooLargeAMessageCostsItsCallAlone) {
  const auto held = client_.call("/hold", framed("x"));
  const auto large = client_.call("/late", framed(std::string(1001, 'x')), false);
  const auto cut = client_.call("/late", framed("hello").substr(0, 7));
  const auto good = client_.call("/late", framed(std::string(1000, 'x')));
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[large].headers.at("grpc-status"), "8");
  EXPECT_TRUE(client_.replies[large].closed);  // though the client had not ended
  EXPECT_EQ(client_.replies[cut].headers.at("grpc-status"), "13");
  EXPECT_EQ(client_.replies[good].headers.at("grpc-status"), "0");
  EXPECT_FALSE(client_.replies[held].closed);
  EXPECT_EQ(server_.calls(), 1U);
  ASSERT_EQ(echo_.open.size(), 1U);
  echo_.open.front()->finish(1, "", {});
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[held].headers.at("grpc-status"), "1");
}

std::string deflated(const std::string& text, bool gzip) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, gzip ? 31 : 15, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string compressed(const std::string& bytes) {
  std::string out = framed(bytes);
  out[0] = 1;
  return out;
}

TEST_F(TransportSession, CompressedMessagesAreOpened) {
  const std::string text(1000, 'z');
  const auto gzip = client_.call("/late", compressed(deflated(text, true)), true, {{"grpc-encoding", "gzip"}});
  const auto zlib = client_.call("/late", compressed(deflated(text, false)), true, {{"grpc-encoding", "deflate"}});
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[gzip].data, framed(text));
  EXPECT_EQ(client_.replies[zlib].data, framed(text));
}

TEST_F(TransportSession, WhatSwellsOrIsNotWhatItSaysIsRefused) {
  const auto gzip = [&](const std::string& bytes, const char* encoding = "gzip") {
    return client_.call("/late", compressed(bytes), true, {{"grpc-encoding", encoding}});
  };
  const auto bomb = gzip(deflated(std::string(200'000, 'z'), true));
  const auto one_more = gzip(deflated(std::string(1001, 'z'), true));
  const auto cut = gzip(deflated("hello", true).substr(0, 12));
  const auto more = gzip(deflated("hello", true) + "x");
  const auto other = gzip(deflated("hello", false));
  const auto unknown = gzip("hello", "snappy");
  const auto unnamed = client_.call("/late", compressed("hello"));
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.replies[bomb].headers.at("grpc-status"), "8");
  EXPECT_EQ(client_.replies[one_more].headers.at("grpc-status"), "8");
  for (const auto stream : {cut, more, other}) EXPECT_EQ(client_.replies[stream].headers.at("grpc-status"), "13");
  EXPECT_EQ(client_.replies[unknown].headers.at("grpc-status"), "12");
  EXPECT_EQ(client_.replies[unknown].headers.at("grpc-accept-encoding"), "identity,deflate,gzip");
  EXPECT_EQ(client_.replies[unnamed].headers.at("grpc-status"), "12");
}

// One long header, many short ones, and one that is kept in the table and then named by a byte each time.
TEST_F(TransportSession, TooManyHeadersCostTheirCallAlone) {
  using Headers = std::vector<std::pair<std::string, std::string>>;
  Headers many;
  for (int i = 0; i < 100; ++i) many.emplace_back("x-" + std::to_string(i), "v");
  const Headers kept{{"x-kept", std::string(900, 'v')}};
  client_.call("/late", framed("x"), true, kept);
  for (const Headers& headers : {Headers{{"more", std::string(2000, 'x')}}, many, Headers(10, kept.front())}) {
    const auto large = client_.call("/late", framed("x"), true, headers);
    const auto good = client_.call("/late", framed("x"));
    ASSERT_TRUE(client_.talk());
    EXPECT_TRUE(client_.replies[large].closed);
    EXPECT_NE(client_.replies[large].error, 0U);
    EXPECT_EQ(client_.replies[good].headers.at("grpc-status"), "0");
  }
}

TEST_F(TransportSession, AFloodOfResetsEndsTheConnection) {
  for (int i = 0; i < 30 && !server_.over(); ++i) {
    const auto stream = client_.call("/hold", "", false);
    client_.talk();
    client_.reset(stream);
    client_.talk();
  }
  EXPECT_TRUE(server_.over());
  EXPECT_EQ(client_.went_away, static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_LE(echo_.begun, 21);
  EXPECT_TRUE(echo_.open.empty());
}

// Calls that are cancelled a little later than they came: the connection goes, and loses none of its open calls.
TEST_F(TransportSession, ManyCancelsLetOpenCallsEnd) {
  const auto held = client_.call("/hold", framed("x"));
  ASSERT_TRUE(client_.talk());
  int cancelled = 0;
  for (; cancelled < 1000 && client_.went_away == 0xffffffff; ++cancelled) {
    const auto stream = client_.call("/hold", framed("y"));
    ASSERT_TRUE(client_.talk());
    client_.now += 1'000'000;
    client_.reset(stream);
    ASSERT_TRUE(client_.talk());
  }
  EXPECT_GT(cancelled, 10 * 20);  // ten times as many as at once
  EXPECT_EQ(client_.went_away, static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_FALSE(server_.over());
  ASSERT_EQ(echo_.open.size(), 1U);
  echo_.open.front()->send("last");
  echo_.open.front()->finish(0, "", {});
  client_.talk();
  EXPECT_EQ(client_.replies[held].data, framed("last"));
  EXPECT_EQ(client_.replies[held].headers.at("grpc-status"), "0");
  EXPECT_TRUE(server_.over());
}

// One that was told and goes on is thrown out, with all that it has open.
TEST_F(TransportSession, ResetsOfAClientThatDoesNotListen) {
  client_.call("/hold", framed("x"));
  client_.talk();
  for (int i = 0; i < 60; ++i) {
    const auto stream = client_.call("/hold", "", false);
    client_.say();  // and what the server says is for later
    client_.reset(stream);
    client_.say();
  }
  client_.talk();
  EXPECT_TRUE(server_.over());
  EXPECT_LE(echo_.begun, 1 + 41);
}

TEST_F(TransportSession, ResetsOverALongTimeAreNoFlood) {
  for (int i = 0; i < 60; ++i) {
    client_.now += 1'000'000'000;
    const auto stream = client_.call("/hold", "", false);
    ASSERT_TRUE(client_.talk());
    client_.reset(stream);
    ASSERT_TRUE(client_.talk());
  }
  EXPECT_EQ(echo_.cancelled, 60);
}

TEST_F(TransportSession, GoingAwayEndsWhatIsUnderWay) {
  const auto held = client_.call("/hold", framed("x"));
  ASSERT_TRUE(client_.talk());
  server_.go_away();
  ASSERT_TRUE(client_.talk());
  EXPECT_EQ(client_.went_away, 0U);
  ASSERT_EQ(echo_.open.size(), 1U);
  echo_.open.front()->send("last");
  echo_.open.front()->finish(0, "", {});
  client_.talk();
  EXPECT_EQ(client_.replies[held].data, framed("last"));
  EXPECT_TRUE(server_.over());
}

TEST(TransportSessionEnd, EachOpenCallIsToldOnce) {
  Echo echo;
  {
    Memory memory;
    ServerSession server(echo, {}, memory, "test", [] {});
    Client client(server);
    for (int i = 0; i < 5; ++i) client.call("/hold", framed("x"), i % 2 == 0);
    ASSERT_TRUE(client.talk());
    EXPECT_EQ(server.calls(), 5U);
  }
  EXPECT_EQ(echo.cancelled, 5);
}

TEST(TransportSessionEnd, AnyBytesAreSurvived) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    Echo echo;
    Memory memory;
    ServerSession server(echo, {}, memory, "test", [] {});
    std::string bytes = round % 2 == 0 ? std::string(NGHTTP2_CLIENT_MAGIC) : std::string();
    for (int i = 0; i < 60; ++i) bytes += static_cast<char>(random() % (round % 3 == 0 ? 256 : 6));
    server.feed(bytes, 1);
    std::string out;
    server.output(&out, 1U << 20);
    EXPECT_LT(out.size(), 10'000U);
  }
}

}  // namespace
}  // namespace arlo::transport
