// What a message may hold: counts and bytes are bounded while it is parsed, and ids are of the vocabulary.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gateway_fixture.h"
#include "gateway_reference.h"
#include "rewrite/request.h"

namespace arlo::gateway {
namespace {

using inference::ModelInferRequest;

constexpr int kMost = 64;

std::string bounded(const std::string& body, const ModelSpec& model) {
  InferRequest request;
  auto fault = request.parse(body);
  if (!fault) fault = request.bind(model, {});
  EXPECT_TRUE(!fault || fault->code == Code::kInvalidArgument);
  return fault ? fault->message : "";
}

ModelInferRequest one_row(const std::vector<std::int64_t>& ids) {
  ModelInferRequest request;
  request.set_model_name("encoder");
  auto* input = request.add_inputs();
  input->set_name("input_ids");
  input->set_datatype("INT64");
  input->add_shape(1);
  input->add_shape(static_cast<std::int64_t>(ids.size()));
  request.add_raw_input_contents(fixture::raw64(ids));
  return request;
}

struct Excess {
  const char* what;
  std::function<void(ModelInferRequest*)> add;
};

class TooMany : public testing::TestWithParam<Excess> {};

TEST_P(TooMany, AreRefusedWhileTheyAreRead) {
  const auto model = fixture::model(0);
  ModelInferRequest message;
  for (int i = 0; i <= kMost; ++i) GetParam().add(&message);
  InferRequest request;
  const auto fault = request.parse(message.SerializeAsString());
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->message, std::string("the request has too many ") + GetParam().what + ": at most 64 are taken");
  EXPECT_EQ(reference::check_request(message.SerializeAsString(), *model, {}, fixture::runtimes()), "");
}

INSTANTIATE_TEST_SUITE_P(Gateway, TooMany,
                         testing::Values(Excess{"inputs", [](auto* message) { message->add_inputs(); }},
                                         Excess{"outputs", [](auto* message) { message->add_outputs(); }},
                                         Excess{"raw_input_contents",
                                                [](auto* message) { message->add_raw_input_contents(); }},
                                         Excess{"parameters",
                                                [](auto* message) {
                                                  auto& parameters = *message->mutable_parameters();
                                                  parameters[std::to_string(parameters.size())].set_bool_param(true);
                                                }}),
                         [](const auto& given) { return std::string(given.param.what); });

TEST(Bounds, AsManyParametersAsAreTaken) {
  const auto model = fixture::model(0);
  auto message = one_row({1, 2});
  for (int i = 0; i < kMost; ++i) (*message.mutable_parameters())["p" + std::to_string(i)].set_int64_param(i);
  EXPECT_EQ(bounded(message.SerializeAsString(), *model), "");
  EXPECT_EQ(reference::check_request(message.SerializeAsString(), *model, {}, fixture::runtimes()), "");
}

TEST(Bounds, ParametersAreWrittenForEveryRowSoTheyAreSmall) {
  const auto model = fixture::model(0);
  auto message = one_row({1, 2});
  (*message.mutable_parameters())["a"].set_string_param(std::string(16'000, 'x'));
  EXPECT_EQ(bounded(message.SerializeAsString(), *model), "");
  (*message.mutable_parameters())["b"].set_string_param(std::string(400, 'x'));
  EXPECT_EQ(bounded(message.SerializeAsString(), *model), "the request's parameters have more than 16384 bytes");
  EXPECT_EQ(reference::check_request(message.SerializeAsString(), *model, {}, fixture::runtimes()), "");
}

TEST(Bounds, ParametersOfTensorsCountToo) {
  const auto model = fixture::model(0);
  for (const bool output : {false, true}) {
    auto message = one_row({1, 2});
    auto* parameters =
        output ? message.add_outputs()->mutable_parameters() : message.mutable_inputs(0)->mutable_parameters();
    for (int i = 0; i <= kMost; ++i) (*parameters)["p" + std::to_string(i)].set_int64_param(i);
    EXPECT_EQ(bounded(message.SerializeAsString(), *model),
              "the request has too many parameters: at most 64 are taken");
  }
}

// Two bytes a field: 34 MB of them took gigabytes, and seconds of the only thread.
TEST(Bounds, SmallFieldsByTheMillionAreNotReadToTheEnd) {
  constexpr std::size_t kFields = 1 << 20;
  for (const char* field : {"\x2a\x00", "\x32\x00", "\x3a\x00", "\x22\x00", "\x52\x00", "\x50\x01"}) {
    std::string body;
    body.reserve(2 * kFields);
    for (std::size_t i = 0; i < kFields; ++i) body.append(field, 2);
    EXPECT_TRUE(InferRequest().parse(body).has_value()) << testing::PrintToString(std::string(field, 2));
    ModelInferRequest message;
    message.add_inputs();
    std::string nested = message.SerializeAsString();
    nested.resize(1);
    for (std::size_t size = body.size(); size != 0; size >>= 7) {
      nested.push_back(static_cast<char>(size >= 0x80 ? size | 0x80 : size));
    }
    EXPECT_TRUE(InferRequest().parse(nested + body).has_value()) << testing::PrintToString(std::string(field, 2));
  }
}

TEST(Bounds, IdsAreOfTheVocabulary) {
  const auto model = fixture::model(0);
  ASSERT_EQ(model->vocabulary, 30'522);
  EXPECT_EQ(bounded(one_row({0, 30'521}).SerializeAsString(), *model), "");
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{30'522}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_EQ(bounded(one_row({7, id}).SerializeAsString(), *model),
              "row 0 has the token id " + std::to_string(id) + "; model 'encoder' takes ids of 0 to 30521");
  }
}

TEST(Bounds, WhatTheClientPaddedWithIsNotLookedAt) {
  const auto model = fixture::model(0);
  auto message = one_row({7, 8, -100});
  *message.add_inputs() = message.inputs(0);
  message.mutable_inputs(1)->set_name("attention_mask");
  message.add_raw_input_contents(fixture::raw64({1, 1, 0}));
  EXPECT_EQ(bounded(message.SerializeAsString(), *model), "");
}

TEST(Bounds, WithoutAVocabularyAnyIdThatIsNotNegative) {
  const auto narrow = fixture::model(1);
  EXPECT_EQ(narrow->vocabulary, std::int64_t{1} << 31);
  EXPECT_EQ(fixture::model(3)->vocabulary, std::numeric_limits<std::int64_t>::max());
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{2'147'483'647}}) {
    auto message = one_row({1});
    message.set_model_name("bare");
    message.mutable_inputs(0)->set_name("ids");
    message.mutable_inputs(0)->set_datatype("INT32");
    message.set_raw_input_contents(0, fixture::raw32({id}));
    EXPECT_EQ(bounded(message.SerializeAsString(), *narrow),
              id < 0 ? "row 0 has the token id -1; model 'bare' takes ids of 0 to 2147483647" : "");
  }
}

}  // namespace
}  // namespace arlo::gateway
