// What one request of the HTTP API may cost, and bodies that once did harm.

#include <gtest/gtest.h>

#include <string>

#include "gateway/front/embeddings.h"
#include "gateway/front/http_message.h"
#include "gateway/front/kserve_http.h"
#include "gateway/front/scores.h"
#include "gateway/front/tokens.h"
#include "http_api_models.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kRows = 1024;

std::string repeated(const std::string& part, std::size_t count) {
  std::string out = part;
  for (std::size_t i = 1; i < count; ++i) out += "," + part;
  return out;
}

MaybeFault asked(ApiTask& task, const std::string& body, const ModelSpec& model) {
  inference::ModelInferRequest request;
  ApiAnswer made;
  if (auto fault = task.read({.bytes = body, .json_size = {}})) return fault;
  if (auto fault = task.ask(model, kRows, &request)) return fault;
  return task.calls() ? MaybeFault() : task.write(model, {}, &made);
}

TEST(HttpApi, ParametersMayHaveParameters) {
  const std::string body = R"({"inputs":{"source_sentence":"a","sentences":["a"]},
    "parameters":{"a":"a long text that is on the heap, not in place","parameters":{"b":1},"truncate":"END","z":[1]}})";
  EXPECT_FALSE(asked(*make_tei_similarity(), body, *http_api_models()[0]));
}

TEST(HttpApi, AQueryIsRepeatedUpToALimit) {
  const auto model = http_api_models()[1];
  const auto body = [](std::size_t query) {
    return R"({"query":")" + std::string(query, 'a') + R"(","texts":[)" + repeated("\"a\"", kRows) + "]}";
  };
  EXPECT_FALSE(asked(*make_either_rerank(), body(1000), *model));
  const auto fault = asked(*make_either_rerank(), body(1 << 20), *model);
  ASSERT_TRUE(fault.has_value());
  EXPECT_NE(fault->message.find("send fewer rows"), std::string::npos) << fault->message;
}

TEST(HttpApi, RowsAreFilledUpToALimit) {
  ModelSpec model = *http_api_models()[0];
  model.longest = 8192;
  const auto body = [](std::size_t ids) {
    return R"({"inputs":[[)" + repeated("6", ids) + "]," + repeated("[6]", kRows - 1) + "]}";
  };
  EXPECT_FALSE(asked(*make_tei_embed(), body(2048), model));
  EXPECT_TRUE(asked(*make_tei_embed(), body(8192), model));
}

TEST(HttpApi, TokensAreCountedOverAllTexts) {
  const auto body = [](std::size_t texts) {
    std::string words = "a";
    for (int i = 1; i < 60'000; ++i) words += " a";
    return R"({"inputs":[)" + repeated("\"" + words + "\"", texts) + "]}";
  };
  const auto model = http_api_models()[0];
  EXPECT_FALSE(asked(*make_tei_tokenize(), body(1), *model));
  EXPECT_TRUE(asked(*make_tei_tokenize(), body(2), *model));
}

TEST(HttpApi, NumbersAreThoseThatWereSent) {
  const auto model = http_api_models()[0];
  EXPECT_TRUE(asked(*make_tei_embed(), R"({"inputs":[[18446744073709551615]]})", *model));
  EXPECT_TRUE(asked(*make_kserve_infer(),
                    R"({"inputs":[{"name":"a","datatype":"INT64","shape":[18446744073709551615],"data":[1]}]})",
                    *model));
}

TEST(HttpApi, TensorsOfARequestAreCounted) {
  const auto body = [](std::size_t outputs) {
    return R"({"inputs":[{"name":"a","datatype":"INT64","shape":[1],"data":[1]}],"outputs":[)" +
           repeated("{}", outputs) + "]}";
  };
  EXPECT_FALSE(asked(*make_kserve_infer(), body(256), *http_api_models()[0]));
  EXPECT_TRUE(asked(*make_kserve_infer(), body(257), *http_api_models()[0]));
}

TEST(HttpApi, ATransferEncodingIsSaidOnce) {
  const std::string line = "Transfer-Encoding: chunked\r\n";
  EXPECT_TRUE(read_request("POST / HTTP/1.1\r\n" + line + "\r\n")->framed);
  EXPECT_FALSE(read_request("POST / HTTP/1.1\r\n" + line + "Transfer-Encoding: gzip\r\n\r\n")->framed);
}

TEST(HttpApi, HeadsThatAnotherMayReadInAnotherWayAreNone) {
  const auto framed = [](const std::string& lines, const std::string& version = "HTTP/1.1") {
    const auto request = read_request("POST / " + version + "\r\n" + lines + "\r\n");
    return request->good && request->framed;
  };
  EXPECT_TRUE(framed("Host: a\r\nX-Y_z!: \ta b\t\r\n"));
  for (const std::string lines : {"X: a\nContent-Length: 5\r\n", "X: a\rContent-Length: 5\r\n", "X(y): a\r\n",
                                  "X\nContent-Length: a\r\n", "Host: a\r\nHost: a\r\n", ": a\r\n", "X : a\r\n"}) {
    EXPECT_FALSE(framed(lines)) << lines;
  }
  EXPECT_FALSE(framed(std::string("X: a\0b\r\n", 9)));
  EXPECT_FALSE(framed(std::string("Transfer-Encoding\0: chunked\r\n", 29)));
  EXPECT_FALSE(framed("Transfer-Encoding: chunked\r\n", "HTTP/1.0"));
  EXPECT_FALSE(read_request("GET /health\nX HTTP/1.1\r\n\r\n")->good);
  EXPECT_TRUE(read_request("GET / HTTP/1.1\r\nConnection: te, Close\r\n\r\n")->closes);
}

TEST(HttpApi, ChunkSizesHaveNothingBehindThemButExtensions) {
  const auto state = [](std::string_view bytes) {
    std::size_t taken = 0;
    return ChunkedBody(100).feed(bytes, &taken);
  };
  EXPECT_EQ(state("1;a=b\r\nx\r\n0\r\n\r\n"), ChunkedBody::State::kDone);
  EXPECT_EQ(state("1 \t;a\r\nx\r\n0\r\n\r\n"), ChunkedBody::State::kDone);
  EXPECT_EQ(state("1 a\r\nx\r\n0\r\n\r\n"), ChunkedBody::State::kWrong);
  EXPECT_EQ(state("1;\na\r\nx\r\n0\r\n\r\n"), ChunkedBody::State::kWrong);
}

}  // namespace
}  // namespace arlo::gateway
