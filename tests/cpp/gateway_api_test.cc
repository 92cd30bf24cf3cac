// What one request of the HTTP API may cost, and bodies that once did harm.

#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "gateway/desk/trace.h"
#include "gateway/front/api/fields.h"
#include "gateway/front/api/task.h"
#include "gateway/front/http/http_message.h"
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
  HttpAnswer made;
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

TEST(HttpApi, OneTextForAllOthersIsRepeatedUpToALimit) {
  const auto model = http_api_models()[1];
  const auto body = [](std::size_t query) {
    return R"({"queries":")" + std::string(query, 'a') + R"(","documents":[)" + repeated("\"a\"", kRows) + "]}";
  };
  EXPECT_FALSE(asked(*make_score(), body(1000), *model));
  EXPECT_TRUE(asked(*make_score(), body(1 << 20), *model));
}

TEST(HttpApi, JsonIsReadAsTheLibraryDoes) {
  using nlohmann::json;
  const std::string seeds[] = {
      R"({"a":[1,-2,3.5e3,"x\u00e9\ud83d\ude00",null,true,false],"b":{"c":""},"b":2})",
      R"([0,-0,1e308,1e309,1e-400,18446744073709551615,18446744073709551616,-9223372036854775808,0.1E+2])",
      "\"na\xc3\xafve \xf0\x9f\x98\x80 text that is long \\n \\\" \\/ \"", "\xef\xbb\xbf [[[[1]]],{ }]"};
  const std::string characters = "{}[]\",:\\u0123456789abcdefnrtE+-. \n\xc3\xa9\xf0\x9f\x98\x80\xed\xa0\x01\x7f\xff";
  std::mt19937 random(1);
  std::size_t good = 0;
  constexpr int kTexts = 100'000;
  for (int i = 0; i < kTexts; ++i) {
    std::string text = seeds[random() % std::size(seeds)];
    for (auto edits = random() % 4; edits > 0; --edits) {
      const auto at = random() % text.size();
      const char with = characters[random() % characters.size()];
      const auto kind = random() % 3;
      if (kind == 0) text[at] = with;
      if (kind == 1) text.insert(at, 1, with);
      if (kind == 2 && text.size() > 1) text.erase(at, 1);
    }
    json ours;
    const auto theirs = json::parse(text, nullptr, false);
    const auto read = read_json(text, 1000, &ours);
    ASSERT_EQ(read == JsonRead::kOk, !theirs.is_discarded()) << text;
    if (theirs.is_discarded()) continue;
    ASSERT_EQ(ours.dump(), theirs.dump()) << text;
    ++good;
  }
  EXPECT_GT(good, kTexts / 5);
  json made;
  EXPECT_EQ(read_json("[[1]]", 2, &made), JsonRead::kOk);
  EXPECT_EQ(read_json("[[[1]]]", 2, &made), JsonRead::kTooDeep);
  EXPECT_EQ(read_json(std::string_view("1\0", 2), 2, &made), JsonRead::kWrong);
  for (const std::string_view small : {"{}", "[]", "\"\"", "{\"\":0}"}) {
    std::string list = "[";
    for (int i = 0; i < 2'000'000; ++i) list.append(i == 0 ? "" : ",").append(small);
    EXPECT_EQ(read_json(list + "]", 3, &made), JsonRead::kTooMany) << small;
  }
}

TEST(HttpApi, NumbersAreReadBackAsTheyWere) {
  const auto same = [](float value) {
    std::string text;
    append_float(value, &text);
    float back = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), back);
    const bool bits = std::bit_cast<std::uint32_t>(back) == std::bit_cast<std::uint32_t>(value);
    return stop == text.data() + text.size() && error == std::errc() && bits;
  };
  for (const float value : {0.0F, -0.0F, 1.0F, -1.0F, 0.1F, 0.01F, 1e-3F, 1e-4F, 9.9999990e-5F, 9.9999998e-2F,
                            0.99999994F, 9.999999F, 10.0F, 0.5F, 1e-45F, 3.4028235e38F}) {
    EXPECT_TRUE(same(value)) << value;
    EXPECT_TRUE(same(-value)) << value;
  }
  for (std::uint32_t bits = 1; bits < 0x7f800000; bits += 5003) {  // all sizes
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    ASSERT_TRUE(same(value)) << value;
  }
  for (std::uint32_t bits = 0x38d00000; bits < 0x41300000; bits += 101) {  // 1e-4 to 11
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    ASSERT_TRUE(same(value)) << value;
  }
  std::string list;
  const float few[] = {0.5F, -2.0F, NAN};
  append_floats(few, 3, &list);
  EXPECT_EQ(list, "[0.5,-2,null]");
  const std::vector<float> many(1000, 0.25F);
  list.clear();
  append_floats(many.data(), many.size(), &list);
  EXPECT_EQ(nlohmann::json::parse(list).get<std::vector<float>>(), many);
}

TEST(HttpApi, BytesAreBase64) {
  const auto packed = [](std::string_view bytes) {
    std::string out;
    append_base64(bytes, &out);
    return out;
  };
  EXPECT_EQ(packed(""), "");
  EXPECT_EQ(packed("f"), "Zg==");
  EXPECT_EQ(packed("fo"), "Zm8=");
  EXPECT_EQ(packed("foo"), "Zm9v");
  EXPECT_EQ(packed("foobar"), "Zm9vYmFy");
  EXPECT_EQ(packed("\xff\xfe\xfd\xfc"), "//79/A==");
}

TEST(HttpApi, RowsAreFilledUpToALimit) {
  ModelSpec model = *http_api_models()[0];
  model.longest = 65536;
  const auto body = [](std::size_t ids) {
    return R"({"inputs":[[)" + repeated("6", ids) + "]," + repeated("[6]", kRows - 1) + "]}";
  };
  EXPECT_FALSE(asked(*make_tei_embed(), body(2048), model));
  EXPECT_TRUE(asked(*make_tei_embed(), body(65536), model));
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

TEST(HttpApi, ParametersOfAWrongTypeAreNone) {
  const auto model = http_api_models()[0];
  const auto body = [](const std::string& input, const std::string& output, const std::string& all) {
    return R"({"inputs":[{"name":"a","datatype":"INT64","shape":[1],"data":[1],"parameters":{)" + input +
           R"(}}],"outputs":[{"name":"b","parameters":{)" + output + R"(}}],"parameters":{)" + all + "}}";
  };
  EXPECT_FALSE(asked(*make_kserve_infer(), body("", R"("binary_data":true)", R"("binary_data_output":false)"), *model));
  EXPECT_TRUE(asked(*make_kserve_infer(), body("", R"("binary_data":1)", ""), *model));
  EXPECT_TRUE(asked(*make_kserve_infer(), body("", "", R"("binary_data_output":"true")"), *model));
  EXPECT_TRUE(asked(*make_kserve_infer(), body(R"("binary_data_size":"8")", "", ""), *model));
}

TEST(HttpApi, GzipIsPackedWhereItIsTaken) {
  for (const char* taken : {"gzip", "br, gzip", "x-gzip;q=0.1", "GZIP ; q=1", "deflate,gzip;q=0.001"}) {
    EXPECT_TRUE(takes_gzip(taken)) << taken;
  }
  for (const char* refused : {"", "br", "gzip;q=0", "gzip; q=0.000", "gzippy", "identity"}) {
    EXPECT_FALSE(takes_gzip(refused)) << refused;
  }
}

TEST(HttpApi, TraceparentsAreThoseOfTheStandard) {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c";
  const std::string good = "00-" + trace + "-b7ad6b7169203331-01";
  const auto read = read_traceparent(good);
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->sampled());
  EXPECT_EQ(read->trace_id, trace);
  EXPECT_EQ(read->text(), good);
  EXPECT_TRUE(read_traceparent("cc-" + good.substr(3) + "-what-comes-later").has_value());
  for (const auto& wrong :
       {std::string(), good.substr(1), good + "-", good + "0", "ff" + good.substr(2), "0x" + good.substr(2),
        "00-" + std::string(32, '0') + good.substr(35), good.substr(0, 36) + std::string(16, '0') + "-01",
        "00-" + std::string(32, 'A') + good.substr(35), good.substr(0, 53) + "0g"}) {
    EXPECT_FALSE(read_traceparent(wrong).has_value()) << wrong;
  }
  Trace ours{.parent = *read, .own = 7, .request_id = {}, .began = 0};
  EXPECT_NE(ours.execution(0, 1), ours.execution(0, 2));
  EXPECT_NE(ours.execution(0, 1), ours.execution(1, 1));
  EXPECT_EQ(ours.for_worker(2, 1), "00-" + trace + "-" + hex_of(ours.execution(2, 1)) + "-01");
  ours.own = 0;
  EXPECT_EQ(ours.for_worker(2, 1), good);
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
                                  "X\nContent-Length: a\r\n", ": a\r\n", "X : a\r\n"}) {
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
