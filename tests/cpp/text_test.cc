// The tokenizer on texts that are none, on files that are none, and at its limits; under sanitizers too. That its
// tokens are those of the `tokenizers` package is shown by tests/property/test_text_*.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace arlo::text {
namespace {

constexpr std::string_view kHead = R"({"added_tokens":[{"id":1,"content":"[SEP]","special":true,"rstrip":true}],
  "normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},
  "post_processor":{"type":"BertProcessing","sep":["[SEP]",1],"cls":["[CLS]",2]},)";
constexpr std::string_view kModel =
    R"("model":{"type":"WordPiece","vocab":{"[UNK]":0,"[SEP]":1,"[CLS]":2,"un":3,"##aff":4,"##able":5,"a":6,"##a":7}}})";

Tokenizer made() {
  Tokenizer tokenizer;
  EXPECT_FALSE(Tokenizer::read(std::string(kHead) + std::string(kModel), tokenizer));
  return tokenizer;
}

Encoding encoded(std::string_view text, Limits limits = {}, std::optional<std::string_view> second = {}) {
  Encoding out;
  EXPECT_FALSE(made().encode(text, second, limits, out));
  EXPECT_EQ(out.ids.size(), out.type_ids.size());
  return out;
}

TEST(Text, Pieces) {
  EXPECT_EQ(encoded("UnÁffable a zz").ids, (Ids{2, 3, 4, 5, 6, 0, 1}));
  EXPECT_EQ(encoded("a[SEP]  a").ids, (Ids{2, 6, 1, 6, 1}));
  EXPECT_EQ(encoded("").ids, (Ids{2, 1}));
  const auto pair = encoded("a", {}, "a a");
  EXPECT_EQ(pair.ids, (Ids{2, 6, 1, 6, 6, 1}));
  EXPECT_EQ(pair.type_ids, (std::vector<std::uint8_t>{0, 0, 0, 1, 1, 1}));
}

TEST(Text, LongTextsAreCut) {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += i % 2 == 0 ? "a " : "un ";
  const auto start = encoded(text, {.most_tokens = 5});
  EXPECT_EQ(start.ids, (Ids{2, 6, 3, 6, 1}));
  EXPECT_TRUE(start.cut);
  EXPECT_EQ(encoded(text, {.most_tokens = 5, .keep_end = true}).ids, (Ids{2, 3, 6, 3, 1}));
  EXPECT_FALSE(encoded("a a a", {.most_tokens = 5}).cut);
  EXPECT_TRUE(encoded("a a a a", {.most_tokens = 5}).cut);
  EXPECT_EQ(encoded(std::string(1 << 20, 'a')).ids, (Ids{2, 0, 1}));
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\u0345" : "\u302f";
  EXPECT_EQ(encoded(marks).ids.size(), 3u);
  Encoding out;
  EXPECT_EQ(made().encode("a", {}, {.most_tokens = 2}, out)->code, Code::kInvalidArgument);
  EXPECT_EQ(made().encode("a", "a", {.most_tokens = 4}, out)->code, Code::kInvalidArgument);
}

TEST(Text, TheFileSaysOnWhichSide) {
  EXPECT_FALSE(made().cuts_left());
  Tokenizer tokenizer;
  const auto file = [](std::string_view cut) { return std::string(kHead) + std::string(cut) + std::string(kModel); };
  EXPECT_FALSE(Tokenizer::read(file(R"("truncation":{"direction":"Left"},)"), tokenizer));
  EXPECT_TRUE(tokenizer.cuts_left());
  for (const auto* other : {R"("truncation":{"direction":"Right"},)", R"("truncation":{},)", R"("truncation":null,)"}) {
    EXPECT_FALSE(Tokenizer::read(file(other), tokenizer));
    EXPECT_FALSE(tokenizer.cuts_left()) << other;
  }
}

// What is sixteen times as long takes about as many times as long, whatever is in it.
TEST(Text, TimeIsLinearInTheText) {
  const auto tokenizer = made();
  const auto cpu_ns = [&](const std::string& text, const Limits& limits) {
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 5; ++i) {
      Encoding out;
      timespec before{};
      timespec after{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
      EXPECT_FALSE(tokenizer.encode(text, {}, limits, out));
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
      best =
          std::min<std::int64_t>(best, (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec);
    }
    return best;
  };
  const auto repeated = [](std::string_view piece, std::size_t bytes) {
    std::string out;
    while (out.size() < bytes) out += piece;
    return out;
  };
  constexpr std::size_t kBytes = 16 << 10;
  for (const std::string_view piece : {"a", "x", " ", "\x01", "a ", "un ", "\u0301", "a\u0301\u0327\u0323", "\u4e00",
                                       "!", "[", "[SEP]", "[SEP]  ", "[SEP", "\u1e69", "\uac00"}) {
    for (const Limits& limits : {Limits{}, Limits{.most_tokens = 8, .keep_end = true}, Limits{.with_places = true}}) {
      const auto few = cpu_ns(repeated(piece, kBytes), limits);
      const auto many = cpu_ns(repeated(piece, 16 * kBytes), limits);
      EXPECT_LT(many, 64 * std::max<std::int64_t>(few, 50'000))
          << piece << " " << limits.keep_end << limits.with_places;
    }
  }
}

TEST(Text, NotUtf8) {
  Encoding out;
  for (const std::string_view bytes : {"\xff", "a\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80"}) {
    EXPECT_EQ(made().encode(bytes, {}, {}, out)->code, Code::kInvalidArgument);
    EXPECT_EQ(made().encode("a", bytes, {}, out)->code, Code::kInvalidArgument);
  }
}

TEST(Text, FilesThatAreNoneOrOther) {
  const std::string head(kHead);
  const std::string model(kModel);
  const auto refused = [](const std::string& json) {
    Tokenizer tokenizer;
    const auto fault = Tokenizer::read(json, tokenizer);
    return fault ? fault->code : Code::kOk;
  };
  for (std::size_t size = 0; size < head.size() + model.size(); ++size) {
    EXPECT_EQ(refused((head + model).substr(0, size)), Code::kInvalidArgument);
  }
  EXPECT_EQ(refused(std::string(100'000, '[')), Code::kInvalidArgument);
  EXPECT_EQ(refused(head + R"("model":{"type":"BPE","vocab":{}}})"), Code::kUnimplemented);
  EXPECT_EQ(refused(head + R"("model":{"type":"WordPiece","vocab":{"a":0}}})"), Code::kUnimplemented);
  EXPECT_EQ(refused(head + R"("model":{"type":"WordPiece","vocab":{"[UNK]":-1}}})"), Code::kInvalidArgument);
  EXPECT_EQ(refused("{" + model), Code::kOk);
  EXPECT_EQ(refused(R"({"normalizer":{"type":"NFKC"},)" + model), Code::kUnimplemented);
  EXPECT_EQ(refused(R"({"pre_tokenizer":{"type":"ByteLevel"},)" + model), Code::kUnimplemented);
  EXPECT_EQ(refused(R"({"post_processor":{"type":"TemplateProcessing"},)" + model), Code::kUnimplemented);
  EXPECT_EQ(refused(R"({"added_tokens":[{"id":1,"content":"[SEP]","single_word":true}],)" + model),
            Code::kUnimplemented);
  EXPECT_EQ(refused(R"({"added_tokens":[{"id":77,"content":"new"}],)" + model), Code::kUnimplemented);
}

}  // namespace
}  // namespace arlo::text
