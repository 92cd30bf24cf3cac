// What a client may take of a connection: bytes, time, frames. In memory, by a clock of the tests.
#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>
#include <zlib.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/frame_meter.h"
#include "transport/grpc_message.h"
#include "transport/server_session.h"
#include "transport_client.h"

namespace arlo::transport {
namespace {

constexpr TimeNs kSecond = 1000 * kMs;
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum FrameType : char {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9
};

std::string frame(FrameType type, char flags, std::uint32_t stream, std::string_view payload) {
  std::string out;
  for (const int shift : {16, 8, 0}) out.push_back(static_cast<char>(payload.size() >> shift & 0xff));
  out.push_back(type);
  out.push_back(flags);
  for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<char>(stream >> shift & 0xff));
  return out + std::string(payload);
}

std::string hello() { return std::string(kPreface) + frame(kSettings, 0, 0, ""); }

// ---- the meter
// -------------------------------------------------------------------------------------------------------

TEST(FrameMeter, WholeFramesLeaveNothingOpen) {
  FrameMeter meter({});
  EXPECT_FALSE(meter.greeted());
  EXPECT_EQ(meter.feed(hello() + frame(kData, 0, 1, "abc"), kSecond), "");
  EXPECT_TRUE(meter.greeted());
  EXPECT_FALSE(meter.within());
  EXPECT_EQ(meter.overdue(1000 * kSecond), "");
}

TEST(FrameMeter, AnyCutSeesTheSame) {
  const std::string bytes = hello() + frame(kHeaders, 0, 1, "ab") + frame(kContinuation, 4, 1, "c") +
                            frame(kData, 1, 1, "") + frame(kPing, 0, 0, "12345678");
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    FrameMeter meter({});
    EXPECT_EQ(meter.feed(bytes.substr(0, cut), kSecond), "");
    EXPECT_EQ(meter.feed(bytes.substr(cut), 2 * kSecond), "");
    EXPECT_FALSE(meter.within()) << cut;
  }
}

TEST(FrameMeter, WhatIsNotWholeInTime) {
  FrameMeter headers({});
  headers.feed(hello() + frame(kHeaders, 0, 1, "ab"), kSecond);  // the block goes on
  EXPECT_TRUE(headers.within());
  headers.feed(frame(kContinuation, 0, 1, "c"), 10 * kSecond);  // and on
  EXPECT_EQ(headers.overdue(11 * kSecond), "");
  EXPECT_EQ(headers.overdue(12 * kSecond), "time for headers");

  FrameMeter data({});
  data.feed(hello() + frame(kData, 0, 1, "abcdef").substr(0, 12), kSecond);
  EXPECT_EQ(data.overdue(60 * kSecond), "");
  EXPECT_EQ(data.overdue(62 * kSecond), "time for a request");
  data.feed("def", 62 * kSecond);
  EXPECT_EQ(data.overdue(1000 * kSecond), "");
}

TEST(FrameMeter, HeadersWithoutEnd) {
  FrameMeter meter({});
  meter.feed(hello() + frame(kHeaders, 0, 1, ""), kSecond);
  std::string_view limit;
  int frames = 0;
  for (; limit.empty() && frames < 100; ++frames) {
    limit = meter.feed(frame(kContinuation, 0, 1, std::string(16384, 'x')), kSecond);
  }
  EXPECT_EQ(limit, "bytes of headers");
  EXPECT_EQ(frames, 5);
}

TEST(FrameMeter, WindowsAreWidenedForWhatIsSent) {
  FrameMeter::Limits limits;
  limits.empty_frames = 5;
  FrameMeter meter(limits);
  const std::string update = frame(kWindowUpdate, 0, 1, "1234");
  meter.feed(hello() + frame(kHeaders, 4, 1, "ab"), kSecond);
  for (int i = 0; i < 100; ++i) meter.sent_data();
  for (int i = 0; i < 2 + 1000 + 5; ++i) ASSERT_EQ(meter.feed(update, kSecond), "") << i;
  EXPECT_EQ(meter.feed(update, kSecond), "empty frames");
}

TEST(FrameMeter, FloodsAreCountedInTime) {
  struct Case {
    std::string bytes;
    std::string_view limit;
  };
  for (const auto& [bytes, limit] :
       {Case{frame(kPing, 0, 0, "12345678"), "pings and settings"},
        Case{frame(kSettings, 0, 0, ""), "pings and settings"}, Case{frame(kData, 0, 1, ""), "empty frames"},
        Case{frame(kPriority, 0, 1, "12345"), "empty frames"}, Case{frame(kWindowUpdate, 0, 0, "1234"), "empty frames"},
        Case{frame(static_cast<FrameType>(0x77), 0, 1, "?"), "empty frames"}}) {
    FrameMeter::Limits limits;
    limits.pings = limits.empty_frames = 50;
    FrameMeter flooded(limits);
    FrameMeter spread(limits);
    flooded.feed(hello(), kSecond);
    spread.feed(hello(), kSecond);
    std::string_view said;
    for (int i = 0; i < 60; ++i) {
      if (said.empty()) said = flooded.feed(bytes, kSecond);
      EXPECT_EQ(spread.feed(bytes, i * kSecond), "");
    }
    EXPECT_EQ(said, limit);
  }
}

TEST(FrameMeter, AnswersToOursAreNotCounted) {
  FrameMeter::Limits limits;
  limits.pings = 1;
  FrameMeter meter(limits);
  meter.feed(hello(), kSecond);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(meter.feed(frame(kPing, 1, 0, "12345678"), kSecond), "");
}

// ---- a connection
// ----------------------------------------------------------------------------------------------------

// Keeps what comes; /stream is not unary.
class Keeper final : public Service {
 public:
  std::unique_ptr<CallHandler> begin(ServerCall& call) override { return std::make_unique<Handler>(*this, call); }
  void offended(const std::string& peer, std::string_view limit) override {
    said.push_back(peer + ": " + std::string(limit));
  }

  void aside(const void*, const std::function<void()>& work, const std::function<void()>& then) override {
    waiting.push_back([work, then] {
      work();
      then();
    });
  }

  std::vector<std::string> said;
  std::vector<std::function<void()>> waiting;  // aside
  std::vector<std::size_t> sizes;              // of messages
  std::vector<ServerCall*> calls;
  int messages = 0;
  int sent = 0;
  int ended = 0;

 private:
  class Handler final : public CallHandler {
   public:
    Handler(Keeper& keeper, ServerCall& call) : keeper_(keeper), stream_(call.path() == "/stream") {
      keeper_.calls.push_back(&call);
    }
    void message(std::string bytes) override {
      ++keeper_.messages;
      keeper_.sizes.push_back(bytes.size());
    }
    void half_closed() override {}
    void sent() override { ++keeper_.sent; }
    void closed(bool) override { ++keeper_.ended; }
    [[nodiscard]] bool unary() const override { return !stream_; }

   private:
    Keeper& keeper_;
    const bool stream_;
  };
};

class TransportLimits : public testing::Test {
 protected:
  void SetUp() override {
    server_ = std::make_unique<ServerSession>(keeper_, limits_, memory_, "peer", [] {});
    client_ = std::make_unique<Client>(*server_, 0);  // it takes no answers
    client_->now = kSecond;
    talk();
  }

  std::int32_t call(const std::string& path, std::string body, bool end) {
    return client_->call(path, std::move(body), end, {{"grpc-encoding", "deflate"}});
  }
  bool talk() { return client_->talk(); }

  static Limits small() {
    Limits limits;
    limits.held_bytes = 10'000;
    limits.message_bytes = 8'000;
    return limits;
  }
  Limits limits_ = small();
  Memory memory_;
  Keeper keeper_;
  std::unique_ptr<ServerSession> server_;
  std::unique_ptr<Client> client_;
};

std::string message(std::size_t size) { return std::string(text_of(prefix_of(size))) + std::string(size, 'm'); }

TEST_F(TransportLimits, OfManyRequestsTheLargestIsGivenUp) {
  call("/a", message(2'000), true);
  call("/b", message(6'000), true);
  call("/c", message(1'000), true);
  ASSERT_TRUE(talk());
  EXPECT_TRUE(client_->statuses.empty());
  EXPECT_GE(memory_.used, 9'000U);
  call("/d", message(3'000), true);
  ASSERT_TRUE(talk());
  EXPECT_EQ(client_->statuses, std::vector<std::string>{"8"});
  EXPECT_EQ(keeper_.said, std::vector<std::string>{"peer: bytes of requests and answers"});
  EXPECT_EQ(keeper_.ended, 1);
  server_.reset();
  EXPECT_EQ(memory_.used, 0U);
}

TEST_F(TransportLimits, PartsOfRequestsCount) {
  for (int i = 0; i < 4; ++i) call("/part", message(7'000).substr(0, 4'000), false);
  ASSERT_TRUE(talk());
  EXPECT_LE(server_->held(), 10'000U);
  EXPECT_GE(client_->statuses.size(), 2U);
}

TEST_F(TransportLimits, AnswersThatAreNotTakenCount) {
  for (int i = 0; i < 5; ++i) call("/a", message(10), true);
  ASSERT_TRUE(talk());
  for (auto* each : keeper_.calls) {
    each->send(std::string(3'000, 'a'));
    each->finish(0, "", {});
  }
  ASSERT_TRUE(talk());
  EXPECT_LE(server_->held(), 10'000U);
  EXPECT_EQ(client_->errors, std::vector<std::uint32_t>(2, NGHTTP2_ENHANCE_YOUR_CALM));
}

TEST_F(TransportLimits, WhatIsFreedCountsNoMore) {
  call("/stream", message(4'000), false);
  ASSERT_TRUE(talk());
  for (std::size_t i = 0; i < 20; ++i) {
    keeper_.calls.front()->freed(4'000);
    client_->more(1, 0, message(4'000));
    ASSERT_TRUE(talk());
  }
  EXPECT_EQ(keeper_.messages, 21);
  EXPECT_TRUE(keeper_.said.empty());
}

TEST_F(TransportLimits, APausedStreamStopsItsClient) {
  call("/stream", message(10), false);
  ASSERT_TRUE(talk());
  keeper_.calls.front()->pause(true);
  client_->more(1, 0, message(100) + message(200));
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.messages, 1);
  keeper_.calls.front()->pause(false);
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.messages, 3);
}

class TransportUnread : public TransportLimits {
 protected:
  TransportUnread() { limits_.unread_bytes = 2'000; }
  void answer(std::size_t which) {
    keeper_.calls[which]->send(std::string(3'000, 'a'));
    keeper_.calls[which]->finish(0, "", {});
  }
  void open_windows() {
    const nghttp2_settings_entry window{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20};
    nghttp2_submit_settings(client_->session(), NGHTTP2_FLAG_NONE, &window, 1);
  }
};

TEST_F(TransportUnread, WhatIsAskedNextWaitsUntilAnswersAreTaken) {
  call("/a", message(10), true);
  ASSERT_TRUE(talk());
  answer(0);
  ASSERT_TRUE(talk());
  for (int i = 0; i < 3; ++i) call("/b", message(100), true);
  call("/stream", message(200), false);  // streams have a limit of their own
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.sizes, (std::vector<std::size_t>{10, 200}));
  EXPECT_GE(server_->held(), 3'300U);  // it counts all the same
  keeper_.calls[4]->send(std::string(4'000, 's'));
  open_windows();
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.sizes, (std::vector<std::size_t>{10, 200, 100, 100, 100}));
  for (std::size_t i = 1; i < 4; ++i) answer(i);
  keeper_.calls[4]->finish(0, "", {});
  ASSERT_TRUE(talk());
  EXPECT_EQ(client_->statuses, std::vector<std::string>(5, "0"));
  EXPECT_EQ(server_->calls(), 0U);
}

TEST_F(TransportUnread, ThoseThatWaitMayGo) {
  call("/a", message(10), true);
  ASSERT_TRUE(talk());
  answer(0);
  ASSERT_TRUE(talk());
  const auto gone = call("/b", message(100), true);
  call("/c", message(200), true);
  ASSERT_TRUE(talk());
  client_->reset(gone);
  client_->reset(1);  // no client waits for its answer now
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.sizes, (std::vector<std::size_t>{10, 200}));
  EXPECT_EQ(keeper_.ended, 2);
}

TEST_F(TransportLimits, AnAnswerThatIsNotTakenInTime) {
  call("/a", message(10), true);
  ASSERT_TRUE(talk());
  keeper_.calls.front()->send(std::string(3'000, 'a'));
  keeper_.calls.front()->finish(0, "", {});
  ASSERT_TRUE(talk());
  EXPECT_TRUE(server_->owes());
  EXPECT_TRUE(server_->tick(10 * kSecond));
  EXPECT_TRUE(server_->tick(60 * kSecond));
  ASSERT_TRUE(talk());
  EXPECT_TRUE(client_->errors.empty());
  EXPECT_TRUE(server_->tick(71 * kSecond));
  ASSERT_TRUE(talk());
  EXPECT_EQ(client_->errors, std::vector<std::uint32_t>{NGHTTP2_ENHANCE_YOUR_CALM});
  EXPECT_EQ(keeper_.said, std::vector<std::string>{"peer: time for an answer"});
  EXPECT_FALSE(server_->owes());
}

class TransportAside : public TransportLimits {
 protected:
  TransportAside() { limits_ = Limits{}; }
};

// In zlib's format, as a message that is compressed.
std::string deflated(std::size_t size) {
  const std::string bytes(size, '\0');
  uLongf packed = compressBound(size);
  std::string out(packed, '\0');
  compress(reinterpret_cast<Bytef*>(out.data()), &packed, reinterpret_cast<const Bytef*>(bytes.data()), size);
  out.resize(packed);
  std::string prefix(text_of(prefix_of(out.size())));
  prefix[0] = 1;
  return prefix + out;
}

TEST_F(TransportAside, WhatSwellsIsOpenedAsideAndKeepsItsPlace) {
  call("/stream", deflated(1000) + deflated(1'000'000) + deflated(2000) + message(50), false);
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.sizes, std::vector<std::size_t>{1000});
  client_->more(1, 0, message(60));
  ASSERT_TRUE(talk());
  ASSERT_EQ(keeper_.waiting.size(), 1U);
  EXPECT_GT(memory_.used, 1000U);
  keeper_.waiting.front()();
  EXPECT_EQ(keeper_.sizes, (std::vector<std::size_t>{1000, 1'000'000, 2000, 50, 60}));
  keeper_.calls.front()->freed(SIZE_MAX);
  EXPECT_LT(memory_.used, 100U);
}

TEST_F(TransportAside, WhatIsLargeIsPutTogetherAsideAndKeepsItsPlace) {
  call("/stream", message(1000) + message(400'000) + deflated(2000) + message(50), false);
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.sizes, std::vector<std::size_t>{1000});
  ASSERT_EQ(keeper_.waiting.size(), 1U);
  EXPECT_GT(memory_.used, 400'000U);
  keeper_.waiting.front()();
  EXPECT_EQ(keeper_.sizes, (std::vector<std::size_t>{1000, 400'000, 2000, 50}));
  keeper_.calls.front()->freed(SIZE_MAX);
  EXPECT_LT(memory_.used, 100U);
}

TEST_F(TransportAside, ACallThatEndsMeanwhile) {
  const auto stream = call("/a", deflated(1'000'000), true);
  ASSERT_TRUE(talk());
  client_->reset(stream);
  ASSERT_TRUE(talk());
  EXPECT_EQ(keeper_.ended, 1);
  EXPECT_EQ(memory_.used, 0U);
  keeper_.waiting.front()();
  EXPECT_EQ(keeper_.messages, 0);
}

TEST_F(TransportLimits, ARequestThatIsNotWholeInTime) {
  call("/slow", message(100).substr(0, 50), false);
  call("/nothing", "", false);
  call("/whole", message(100), true);
  call("/stream", message(100), false);  // between messages it may be silent
  ASSERT_TRUE(talk());
  EXPECT_TRUE(server_->awaits());
  EXPECT_TRUE(server_->tick(60 * kSecond));
  ASSERT_TRUE(talk());
  EXPECT_TRUE(client_->statuses.empty());
  EXPECT_TRUE(server_->tick(62 * kSecond));
  ASSERT_TRUE(talk());
  EXPECT_EQ(client_->statuses, (std::vector<std::string>{"4", "4"}));
  EXPECT_FALSE(server_->awaits());
  client_->now = 62 * kSecond;
  client_->more(7, 3, message(100).substr(0, 10));  // now it is within one
  ASSERT_TRUE(talk());
  EXPECT_TRUE(server_->awaits());
  EXPECT_TRUE(server_->tick(123 * kSecond));
  ASSERT_TRUE(talk());
  EXPECT_EQ(client_->statuses.size(), 3U);
}

TEST_F(TransportLimits, ResetsOfMostCallsEndTheConnection) {
  for (int i = 0; i < 1'200; ++i) {
    const auto stream = call("/a", message(10), true);
    talk();
    client_->reset(stream);
    if (!talk()) break;
  }
  EXPECT_EQ(keeper_.said, std::vector<std::string>{"peer: resets"});
}

TEST_F(TransportLimits, ResetsOfCallsThatRanForAWhileDoNot) {
  for (int i = 0; i < 3'000; ++i) {
    const auto stream = call("/a", message(10), true);
    ASSERT_TRUE(talk());
    client_->now += 20'000'000;
    client_->reset(stream);
    ASSERT_TRUE(talk());
  }
  EXPECT_TRUE(keeper_.said.empty());
}

TEST_F(TransportLimits, ResetsNowAndThenDoNot) {
  for (int i = 0; i < 5'000; ++i) {
    const auto stream = call("/a", message(10), true);
    ASSERT_TRUE(talk());
    ASSERT_EQ(keeper_.calls.size(), static_cast<std::size_t>(i) + 1);
    if (i % 3 == 0) {
      client_->reset(stream);
      ASSERT_TRUE(talk());
    } else {
      keeper_.calls.back()->finish(0, "", {});
    }
  }
  EXPECT_TRUE(keeper_.said.empty());
}

TEST_F(TransportLimits, AFloodEndsTheConnection) {
  bool good = true;
  for (int i = 0; i < 2'000 && good; ++i) good = server_->feed(frame(kPing, 0, 0, "12345678"), client_->now);
  EXPECT_FALSE(good);
  EXPECT_EQ(keeper_.said, std::vector<std::string>{"peer: pings and settings"});
}

}  // namespace
}  // namespace arlo::transport
