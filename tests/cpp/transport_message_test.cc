// Messages of gRPC within the bytes of a stream, whatever pieces they come in.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "transport/grpc_message.h"

namespace arlo::transport {
namespace {

using Result = MessageReader::Result;

constexpr std::size_t kLeast = 30;  // that an empty std::string has room for

std::string sent_as(const std::string& message, bool compressed = false) {
  std::string prefix(text_of(prefix_of(message.size())));
  prefix[0] = compressed ? 1 : 0;
  return prefix + message;
}

TEST(MessageReader, TakesMessagesInAnyPieces) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> sent;
    std::string bytes;
    for (int i = 0; i < 4; ++i) {
      sent.emplace_back(random() % 40, static_cast<char>('a' + i));
      bytes += sent_as(sent.back());
    }
    MessageReader reader(1000);
    std::vector<std::string> got;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t some = 1 + random() % 20;
      ASSERT_EQ(reader.feed(std::string_view(bytes).substr(at, some),
                            [&](Message message, bool) { got.push_back(message.whole()); }),
                Result::kOk);
      at += some;
    }
    ASSERT_FALSE(reader.within());
    ASSERT_EQ(got, sent);
  }
}

TEST(MessageReader, AnEmptyMessageIsOne) {
  MessageReader reader(10);
  int count = 0;
  EXPECT_EQ(reader.feed(sent_as("") + sent_as(""), [&](const Message& m, bool) { count += m.size() == 0 ? 1 : 100; }),
            Result::kOk);
  EXPECT_EQ(count, 2);
}

TEST(MessageReader, SaysWhatIsCompressed) {
  MessageReader reader(10);
  bool told = false;
  EXPECT_EQ(reader.feed(sent_as("zz", true), [&](const Message&, bool compressed) { told = compressed; }), Result::kOk);
  EXPECT_TRUE(told);
}

TEST(MessageReader, RefusesALengthAboveTheLimitBeforeItsBytes) {
  MessageReader reader(10);
  EXPECT_EQ(reader.feed(text_of(prefix_of(11)), [](const Message&, bool) { FAIL(); }), Result::kTooLarge);
  MessageReader odd(10);
  EXPECT_EQ(odd.feed(std::string(5, '\x02'), [](const Message&, bool) { FAIL(); }), Result::kMalformed);
}

TEST(MessageReader, ALengthAloneTakesNoMemory) {
  MessageReader reader(1U << 31);
  EXPECT_EQ(reader.feed(text_of(prefix_of(1U << 30)), [](const Message&, bool) { FAIL(); }), Result::kOk);
  EXPECT_LT(reader.held(), 1U << 20);
  EXPECT_TRUE(reader.within());
}

// They lie in blocks: no more is held than came, rounded up, and it is let go of a little at a time.
TEST(MessageReader, LargeMessagesComeInAnyPieces) {
  FreeBlocks blocks;
  const std::size_t size = 50 * Blocks::kBytes + 77;
  std::string large(size, '\0');
  for (std::size_t i = 0; i < size; ++i) large[i] = static_cast<char>(i * 31 >> 5);
  const std::string bytes = sent_as(large) + sent_as("small") + sent_as(large, true);
  for (const std::size_t piece : {std::size_t{997}, Blocks::kBytes, Blocks::kBytes + 1, bytes.size()}) {
    MessageReader reader(1U << 30);
    std::vector<std::string> found;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_EQ(reader.feed(std::string_view(bytes).substr(at, piece),
                            [&](Message message, bool) { found.push_back(message.whole()); }),
                Result::kOk);
      ASSERT_LT(reader.held(), std::min(at + piece, size) + Blocks::kBytes + kLeast);
    }
    ASSERT_EQ(found.size(), 3U);
    EXPECT_TRUE(found[0] == large && found[1] == "small" && found[2] == large);
    EXPECT_LT(reader.held(), kLeast);
    EXPECT_TRUE(blocks.give_back());
    int turns = 1;
    while (blocks.give_back()) ++turns;
    EXPECT_LT(turns, 10);
  }
}

TEST(MessageReader, WhatIsDroppedIsNotHeld) {
  MessageReader reader(1U << 30);
  const std::string bytes = sent_as(std::string(3 * Blocks::kBytes, 'x'));
  EXPECT_EQ(reader.feed(std::string_view(bytes).substr(0, bytes.size() - 1), [](const Message&, bool) { FAIL(); }),
            Result::kOk);
  EXPECT_LT(reader.held(), 3 * Blocks::kBytes + kLeast);
  reader.drop();
  EXPECT_LT(reader.held(), kLeast);
}

TEST(Percent, ThereAndBack) {
  EXPECT_EQ(percent_encoded("plain text, 100 %"), "plain text, 100 %25");
  EXPECT_EQ(percent_encoded("\u00e9\n"), "%C3%A9%0A");
  EXPECT_EQ(percent_decoded("%C3%a9%0A100 %25"), "\u00e9\n100 %");
  EXPECT_EQ(percent_decoded("%zz%4"), "%zz%4");
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(percent_decoded(percent_encoded(all)), all);
}

TEST(Inflate, WhatIsOfNoUseLeavesNothing) {
  const std::string zipped = packed(std::string(1 << 20, 'z'));
  std::string out;
  EXPECT_EQ(open("gzip", zipped, 1 << 20, &out), Opened::kOk);
  EXPECT_EQ(out.size(), 1U << 20);
  EXPECT_EQ(open("gzip", zipped, 1 << 19, &out), Opened::kTooLarge);
  EXPECT_LT(out.capacity(), 100U);
  EXPECT_EQ(open("gzip", zipped.substr(0, zipped.size() / 2), 1 << 20, &out), Opened::kMalformed);
  EXPECT_LT(out.capacity(), 100U);
}

TEST(Timeout, UnitsAndNonsense) {
  EXPECT_EQ(parse_timeout("1H"), 3'600'000'000'000);
  EXPECT_EQ(parse_timeout("2M"), 120'000'000'000);
  EXPECT_EQ(parse_timeout("3S"), 3'000'000'000);
  EXPECT_EQ(parse_timeout("250m"), 250'000'000);
  EXPECT_EQ(parse_timeout("7u"), 7'000);
  EXPECT_EQ(parse_timeout("99999999n"), 99'999'999);
  for (const char* text : {"99999999H", "23333333H", "99999999M"}) {
    const auto long_one = parse_timeout(text);
    ASSERT_TRUE(long_one);
    EXPECT_LE(*long_one, kLongestTimeout) << text;
    EXPECT_GT(*long_one, kLongestTimeout / 2) << text;
  }
  for (const char* text : {"", "S", "1", "1x", "-1S", "1 S", "123456789S"})
    EXPECT_EQ(parse_timeout(text), std::nullopt);
}

}  // namespace
}  // namespace arlo::transport
