// What is made of a model's numbers: activations, numbers that are none, prompts and sizes by default.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gateway/front/api/task.h"
#include "http_api_models.h"
#include "rewrite/model.h"
#include "rewrite/request.h"
#include "rewrite/response.h"

namespace arlo::gateway {
namespace {

using Made = std::unique_ptr<ApiTask> (*)();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Answered {
  MaybeFault fault;
  HttpAnswer answer;
  inference::ModelInferRequest request;
};

// What a client gets whose request a worker answers with these numbers.
Answered answered(Made make, const std::string& body, const ModelSpec& model, const std::vector<float>& values) {
  Answered out;
  const auto task = make();
  out.fault = task->read({.bytes = body, .json_size = {}});
  if (!out.fault) out.fault = task->ask(model, 64, &out.request);
  if (out.fault) return out;
  inference::ModelInferResponse answer;
  answer.add_raw_output_contents(values.data(), values.size() * sizeof(float));
  auto* output = answer.add_outputs();
  output->set_name("sentence_embedding");
  output->set_datatype("FP32");
  output->add_shape(2);
  output->add_shape(static_cast<std::int64_t>(values.size()) / 2);
  out.fault = task->write(model, answer, &out.answer);
  return out;
}

// Scores of the labels 0 and 1 as each route writes them.
std::vector<std::vector<float>> scores_of(const ModelSpec& model, const std::vector<float>& logits) {
  const auto json = [&](Made make, const std::string& body) {
    const auto got = answered(make, body, model, logits);
    EXPECT_FALSE(got.fault) << got.fault->message;
    return nlohmann::json::parse(got.answer.body);
  };
  const auto named = [](const nlohmann::json& list) {
    std::vector<float> scores(list.size());
    for (const auto& each : list) scores[each["label"] == "LABEL_0" ? 0 : 1] = each["score"].get<float>();
    return scores;
  };
  return {named(json(make_tei_predict, R"({"inputs":"a"})")),
          json(make_classify, R"({"input":"a"})")["data"][0]["probs"].get<std::vector<float>>(),
          named(json(make_classify, R"({"input":"a","raw_scores":false})")["data"][0]),
          named(json(make_tei_vertex, R"({"instances":[{"inputs":"a","raw_scores":false}]})")["predictions"][0])};
}

TEST(Activations, OfLabelsAreTheModelsOnEveryRoute) {
  ModelSpec model = *http_api_models()[0];
  model.outputs.erase(model.outputs.begin());  // a classifier and no embedder
  const std::vector<float> logits = {1.5F, -0.5F};
  const auto sigmoid = [](float value) { return 1 / (1 + std::exp(-value)); };
  const std::pair<Activation, std::vector<float>> cases[] = {
      {Activation::kUsual, {sigmoid(2), sigmoid(-2)}},          {Activation::kSoftmax, {sigmoid(2), sigmoid(-2)}},
      {Activation::kSigmoid, {sigmoid(1.5F), sigmoid(-0.5F)}},  {Activation::kIdentity, logits},
      {Activation::kTanh, {std::tanh(1.5F), std::tanh(-0.5F)}},
  };
  for (const auto& [activation, wanted] : cases) {
    model.label_activation = activation;
    for (const auto& found : scores_of(model, logits)) {
      ASSERT_EQ(found.size(), 2U);
      for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(found[i], wanted[i], 1e-6) << static_cast<int>(activation);
    }
    const auto raw = answered(make_tei_predict, R"({"inputs":"a","raw_scores":true})", model, logits);
    EXPECT_EQ(nlohmann::json::parse(raw.answer.body)[0]["score"], 1.5F);
  }
}

TEST(Activations, OfScoresAreTheModelsOnEveryRoute) {
  ModelSpec model = *http_api_models()[1];
  const std::pair<Made, std::string> routes[] = {
      {make_either_rerank, R"({"query":"a","texts":["a"])"}, {make_either_rerank, R"({"query":"a","documents":["a"])"},
      {make_rerank_v1, R"({"query":"a","documents":["a"])"}, {make_rerank_v2, R"({"query":"a","documents":["a"])"},
      {make_score, R"({"queries":"a","documents":["a"])"},
  };
  const auto score = [&](Made make, const std::string& body) {
    const auto got = answered(make, body, model, {-0.5F});
    EXPECT_FALSE(got.fault) << got.fault->message;
    const auto whole = nlohmann::json::parse(got.answer.body);
    const auto& first = whole.is_array()            ? whole[0]
                        : whole.contains("results") ? whole["results"][0]
                                                    : whole["data"][0];
    return first.contains("score") ? first["score"].get<float>() : first["relevance_score"].get<float>();
  };
  const std::pair<Activation, double> cases[] = {{Activation::kUsual, 1 / (1 + std::exp(0.5))},
                                                 {Activation::kSigmoid, 1 / (1 + std::exp(0.5))},
                                                 {Activation::kIdentity, -0.5},
                                                 {Activation::kTanh, std::tanh(-0.5)},
                                                 {Activation::kSoftmax, 1}};
  for (const auto& [activation, wanted] : cases) {
    model.score_activation = activation;
    for (const auto& [make, body] : routes) {
      EXPECT_NEAR(score(make, body + "}"), wanted, 1e-6) << body;
      EXPECT_EQ(score(make, body + R"(,"use_activation":false})"), -0.5F);
    }
  }
}

TEST(NotFinite, NumbersAreAnErrorThatNamesTheInput) {
  const auto both = http_api_models()[0];
  const auto ranker = http_api_models()[1];
  struct Case {
    Made make;
    std::string body;
    const ModelSpec* model;
    std::size_t each;  // numbers of a row
  };
  const Case cases[] = {
      {make_openai_embeddings, R"({"model":"m","input":["a","a"]})", both.get(), 3},
      {make_openai_embeddings, R"({"model":"m","input":["a","a"],"encoding_format":"base64"})", both.get(), 3},
      {make_openai_embeddings, R"({"model":"m","input":["a","a"],"encoding_format":"bytes"})", both.get(), 3},
      {make_openai_embeddings, R"({"model":"m","input":["a","a"],"embedding_type":"binary"})", both.get(), 3},
      {make_tei_embed, R"({"inputs":["a","a"]})", both.get(), 3},
      {make_tei_embed, R"({"inputs":["a","a"],"normalize":false})", both.get(), 3},
      {make_cohere_embed_v2, R"({"texts":["a","a"],"embedding_types":["ubinary"]})", both.get(), 3},
      {make_tei_embed_all, R"({"inputs":["a","a"]})", both.get(), 6},
      {make_tei_similarity, R"({"inputs":{"source_sentence":"a","sentences":["a"]}})", both.get(), 3},
      {make_tei_predict, R"({"inputs":[["a"],["a"]]})", both.get(), 2},
      {make_tei_predict, R"({"inputs":[["a"],["a"]],"raw_scores":true})", both.get(), 2},
      {make_classify, R"({"input":["a","a"]})", both.get(), 2},
      {make_tei_vertex, R"({"instances":[{"inputs":"a"},{"inputs":"a"}]})", both.get(), 3},
      {make_either_rerank, R"({"query":"a","texts":["a","a"]})", ranker.get(), 1},
      {make_rerank_v2, R"({"query":"a","documents":["a","a"]})", ranker.get(), 1},
      {make_score, R"({"queries":"a","documents":["a","a"]})", ranker.get(), 1},
  };
  for (const auto& [make, body, model, each] : cases) {
    std::vector<float> values(2 * each, 0.5F);
    EXPECT_FALSE(answered(make, body, *model, values).fault) << body;
    for (const float odd : {kNan, kInfinity, -kInfinity}) {
      values.back() = odd;
      const auto fault = answered(make, body, *model, values).fault;
      ASSERT_TRUE(fault) << body;
      EXPECT_EQ(fault->code, Code::kInternal);
      EXPECT_EQ(fault->kind, Fault::Kind::kNotFinite);
      EXPECT_NE(fault->message.find("for input 1 "), std::string::npos) << fault->message;
      EXPECT_GE(status_of(Dialect::kOpenAi, *fault), 500);
    }
  }
}

TEST(NotFinite, APieceIsNamedByItsText) {
  ModelSpec model = *http_api_models()[0];
  model.longest = 8;
  const std::string body = R"({"inputs":["a","a a a a a a a a a a"],"truncate":"CHUNK"})";
  const auto rows = answered(make_tei_embed, body, model, {}).request.inputs(0).shape(0);
  ASSERT_GT(rows, 2);
  std::vector<float> values(static_cast<std::size_t>(rows) * 3, 0.5F);
  values.back() = kNan;
  const auto fault = answered(make_tei_embed, body, model, values).fault;
  ASSERT_TRUE(fault);
  EXPECT_NE(fault->message.find("for input 1 "), std::string::npos) << fault->message;
}

TEST(NotFinite, PassAsBinaryDataAndNotAsJson) {
  const auto model = http_api_models()[0];
  const auto body = [](const char* binary) {
    return std::string(R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[2],"data":["a","a"]}],"parameters":)") +
           R"({"binary_data_output":)" + binary + "}}";
  };
  const std::vector<float> values = {1, 2, kNan, 4};
  const auto fault = answered(make_kserve_infer, body("false"), *model, values).fault;
  ASSERT_TRUE(fault);
  EXPECT_NE(fault->message.find("for input 1 "), std::string::npos) << fault->message;
  const auto passed = answered(make_kserve_infer, body("true"), *model, values);
  ASSERT_FALSE(passed.fault);
  float found = 0;
  std::memcpy(&found, passed.answer.body.data() + passed.answer.body.size() - 2 * sizeof(float), sizeof(float));
  EXPECT_TRUE(std::isnan(found));
}

ModelSpec prompted() {
  ModelSpec model = *http_api_models()[0];
  model.prompts = {{"query", "un a: "}, {"document", ""}};
  model.default_prompt = "query";
  return model;
}

TEST(Prompts, OfTheModelGoBeforeTextsThatNameNone) {
  const auto model = prompted();
  const auto found = [&](std::optional<std::string_view> name, std::string_view type) {
    std::string_view prompt;
    const auto fault = find_prompt(model, name, type, &prompt);
    return fault ? fault->message : std::string(prompt);
  };
  EXPECT_EQ(found({}, ""), "un a: ");
  EXPECT_EQ(found({}, "clustering"), "un a: ") << "it has none for this";
  EXPECT_EQ(found({}, "passage"), "") << "it has one, which is empty";
  EXPECT_EQ(found("document", ""), "");
  EXPECT_EQ(found("", ""), "") << "none is asked for";
  EXPECT_NE(found("other", "").find("has no prompt 'other'"), std::string::npos);
}

TEST(Prompts, ReachEveryTextRouteOnce) {
  const auto model = prompted();
  const std::pair<Made, std::string> routes[] = {
      {make_openai_embeddings, R"({"model":"m","input":["a"])"},
      {make_tei_embed, R"({"inputs":["a"])"},
      {make_tei_similarity, R"({"inputs":{"source_sentence":"a","sentences":["a"]})"},
      {make_tei_embed, R"({"inputs":["a"],"truncate_prompt_tokens":6)"},
      {make_tei_embed_all, R"({"inputs":["a"])"},
      {make_kserve_infer, R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}])"},
  };
  const auto length = [&](Made make, const std::string& body) {
    auto got = answered(make, body, model, {});
    got.request.set_model_name(model.name);
    const std::string bytes = got.request.SerializeAsString();
    InferRequest request;
    EXPECT_FALSE(request.parse(bytes));
    const auto fault = request.bind(model, {});
    EXPECT_FALSE(fault) << fault->message;
    return fault ? 0 : request.lengths().front();
  };
  for (const auto& [make, body] : routes) {
    const bool kserve = make == make_kserve_infer;
    const std::string none = kserve ? R"(,"parameters":{"prompt_name":""}})" : R"(,"prompt_name":""})";
    const std::string empty = kserve ? R"(,"parameters":{"prompt_name":"document"}})" : R"(,"prompt_name":"document"})";
    EXPECT_EQ(length(make, body + "}"), 6) << body;  // [CLS] un a : a [SEP]
    EXPECT_EQ(length(make, body + none), 3) << body;
    EXPECT_EQ(length(make, body + empty), 3) << body;
  }
  const std::string ids = R"({"model":"m","input":[[2,6,1]]})";
  EXPECT_EQ(length(make_openai_embeddings, ids), 3) << "ids are what they are";
}

TEST(Tokens, AreSpecialWhereTheyWereAdded) {
  const auto model = http_api_models()[0];
  const auto task = make_tei_tokenize();
  inference::ModelInferRequest request;
  HttpAnswer answer;
  ASSERT_FALSE(task->read({.bytes = R"({"inputs":"a [SEP] \u4e00 a"})", .json_size = {}}));
  ASSERT_FALSE(task->ask(*model, 64, &request));
  ASSERT_FALSE(task->write(*model, {}, &answer));
  const auto row = nlohmann::json::parse(answer.body)[0];
  std::vector<std::pair<std::string, bool>> found;
  for (const auto& each : row) found.emplace_back(each["text"], each["special"]);
  const std::vector<std::pair<std::string, bool>> wanted = {{"[CLS]", true},  {"a", false}, {"[SEP]", false},
                                                            {"[UNK]", false}, {"a", false}, {"[SEP]", true}};
  EXPECT_EQ(found, wanted);
}

TEST(Dimensions, AreTheModelsUnlessARequestSaysOthers) {
  ModelSpec model = *http_api_models()[0];
  model.dimensions = 2;
  const auto size = [&](const std::string& more) {
    const auto got = answered(make_tei_embed, R"({"inputs":["a"],"normalize":false)" + more + "}", model, {3, 4, 5});
    EXPECT_FALSE(got.fault) << got.fault->message;
    return nlohmann::json::parse(got.answer.body)[0].size();
  };
  EXPECT_EQ(size(""), 2U);
  EXPECT_EQ(size(R"(,"dimensions":1)"), 1U);
  EXPECT_EQ(size(R"(,"dimensions":3)"), 3U);
  const auto cut = answered(make_tei_embed, R"({"inputs":["a"]})", model, {3, 4, 5});
  EXPECT_EQ(cut.answer.body, "[[0.600000024,0.800000012]]") << "normalised when it is cut";
  model.dimensions = 8;
  EXPECT_EQ(size(""), 3U) << "no more than there is";
}

TEST(Dimensions, OfTensorRequestsAreTheSame) {
  ModelSpec model = *http_api_models()[0];
  model.dimensions = 2;
  const auto bound = [&](std::int64_t asked) {
    inference::ModelInferRequest message;
    message.set_model_name(model.name);
    auto* input = message.add_inputs();
    input->set_name("text");
    input->set_datatype("BYTES");
    input->add_shape(1);
    message.add_raw_input_contents(std::string("\x01\0\0\0a", 5));
    message.add_outputs()->set_name("sentence_embedding");
    if (asked != 0) (*message.mutable_parameters())["dimensions"].set_int64_param(asked);
    const std::string bytes = message.SerializeAsString();
    InferRequest request;
    EXPECT_FALSE(request.parse(bytes));
    if (request.bind(model, {})) return std::pair<std::int64_t, std::uint64_t>(-1, 0);
    return std::pair(request.cut_to(), known_answer_bytes(model, request));
  };
  EXPECT_EQ(bound(0), std::pair(std::int64_t{2}, std::uint64_t{8}));
  EXPECT_EQ(bound(3), std::pair(std::int64_t{3}, std::uint64_t{12}));
  EXPECT_EQ(bound(4).first, -1);
  model.dimensions = 0;
  EXPECT_EQ(bound(0).first, 0);

  RowResponse row;
  const float whole[] = {1, 2, 3};
  row.set(0, {3}, {reinterpret_cast<const char*>(whole), sizeof whole});
  row.cut_vector(0, 2);
  EXPECT_EQ(row.raw(0).size(), 8U);
  EXPECT_EQ(row.elements(0), 2U);
}

TEST(OwnTask, FitsWhatItsFieldsAreFor) {
  const auto fits = [](const std::string& body) {
    const auto task = make_tei_own();
    EXPECT_FALSE(task->read({.bytes = body, .json_size = {}}));
    ModelSpec embedder = *http_api_models()[0];
    ModelSpec classifier = embedder;
    embedder.outputs.pop_back();
    classifier.outputs.erase(classifier.outputs.begin(), classifier.outputs.end() - 1);
    const bool both[] = {task->fits(embedder), task->fits(classifier)};
    return std::pair(both[0], both[1]);
  };
  EXPECT_EQ(fits(R"({"inputs":"a"})"), std::pair(true, true));
  EXPECT_EQ(fits(R"({"inputs":"a","normalize":true})"), std::pair(true, false));
  EXPECT_EQ(fits(R"({"inputs":"a","raw_scores":false})"), std::pair(false, true));
  EXPECT_EQ(fits(R"({"inputs":[["a","a"]]})"), std::pair(false, true)) << "a pair, which only labels have";
}

}  // namespace
}  // namespace arlo::gateway
