// Requests: what comes in, as protobuf writes it, and the rows that go out, as protobuf reads them.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gateway_fixture.h"
#include "gateway_reference.h"
#include "rewrite/request.h"

namespace arlo::gateway {
namespace {

using inference::ModelInferRequest;

ModelInferRequest written(const std::vector<WorkerRequest::Row>& rows, const RuntimeInfo& runtime,
                          std::int32_t tokens) {
  const WorkerRequest request(rows, runtime, tokens);
  std::string out(request.size() + 1, '\x5a');
  request.write(out.data());
  EXPECT_EQ(out.back(), '\x5a') << "written past its size";
  out.pop_back();
  ModelInferRequest sent;
  EXPECT_TRUE(sent.ParseFromString(out));
  return sent;
}

ModelInferRequest written(const InferRequest& request, std::size_t row, const RuntimeInfo& runtime) {
  return written({{&request, row, request.outputs()}}, runtime, WorkerRequest::tokens(request.lengths()[row], runtime));
}

// Two rows, 3 and 2 tokens, padded by the client to 4.
ModelInferRequest two_rows() {
  ModelInferRequest request;
  request.set_model_name("encoder");
  request.set_id("r\xc3\xa9");
  (*request.mutable_parameters())["colour"].set_string_param("red");
  (*request.mutable_parameters())["timeout"].set_int64_param(1500);
  (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  for (const char* name : {"input_ids", "attention_mask"}) {
    auto* input = request.add_inputs();
    input->set_name(name);
    input->set_datatype("INT64");
    input->add_shape(2);
    input->add_shape(4);
  }
  request.add_raw_input_contents(fixture::raw64({11, 12, 13, 91, 21, 22, 92, 93}));
  request.add_raw_input_contents(fixture::raw64({1, 1, 1, 0, 1, 1, 0, 0}));
  request.add_outputs()->set_name("pooled");
  request.add_outputs()->set_name("hidden");
  return request;
}

TEST(InferRequest, CutsABatchIntoRowsAndPadsEach) {
  const auto model = fixture::model(0);
  const std::string body = two_rows().SerializeAsString();
  InferRequest request;
  ASSERT_EQ(faults(request.parse(body)), "");
  EXPECT_EQ(request.model_name(), "encoder");
  EXPECT_EQ(request.model_version(), "");
  EXPECT_EQ(request.id(), "r\xc3\xa9");
  EXPECT_EQ(request.timeout_us(), 1500);
  EXPECT_TRUE(request.wants_final_response());
  ASSERT_EQ(faults(request.bind(*model, {})), "");
  EXPECT_EQ(request.lengths(), (std::vector<std::int32_t>{3, 2}));
  EXPECT_EQ(request.outputs(), 0b011);

  const ModelInferRequest sent = written(request, 1, {"encoder_5", 5, 1, false});
  EXPECT_EQ(sent.model_name(), "encoder_5");
  EXPECT_EQ(sent.model_version(), "");
  EXPECT_EQ(sent.id(), "r\xc3\xa9");
  ASSERT_EQ(sent.parameters_size(), 1);
  EXPECT_EQ(sent.parameters().at("colour").string_param(), "red");
  ASSERT_EQ(sent.inputs_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sent.inputs(i).name(), model->inputs[static_cast<std::size_t>(i)].name);
    EXPECT_EQ(sent.inputs(i).datatype(), "INT64");
    ASSERT_EQ(sent.inputs(i).shape_size(), 2);
    EXPECT_EQ(sent.inputs(i).shape(0), 1);
    EXPECT_EQ(sent.inputs(i).shape(1), 5);
    EXPECT_FALSE(sent.inputs(i).has_contents());
  }
  ASSERT_EQ(sent.raw_input_contents_size(), 3);
  EXPECT_EQ(sent.raw_input_contents(0), fixture::raw64({21, 22, 5, 5, 5}));
  EXPECT_EQ(sent.raw_input_contents(1), fixture::raw64({1, 1, 0, 0, 0}));
  EXPECT_EQ(sent.raw_input_contents(2), fixture::raw64({7, 7, 7, 7, 7}));
  ASSERT_EQ(sent.outputs_size(), 2);
  EXPECT_EQ(sent.outputs(0).name(), "hidden");
  EXPECT_EQ(sent.outputs(1).name(), "pooled");

  const ModelInferRequest exact = written(request, 0, {"any", 32, 1, true});
  EXPECT_EQ(exact.inputs(0).shape(1), 3);
  EXPECT_EQ(exact.raw_input_contents(0), fixture::raw64({11, 12, 13}));
  EXPECT_EQ(exact.raw_input_contents(2), fixture::raw64({7, 7, 7}));
}

TEST(InferRequest, MakesUpAMaskOfAllTokens) {
  const auto model = fixture::model(0);
  auto message = two_rows();
  message.mutable_inputs()->RemoveLast();
  message.mutable_raw_input_contents()->RemoveLast();
  message.clear_outputs();
  const std::string body = message.SerializeAsString();
  InferRequest request;
  ASSERT_EQ(faults(request.parse(body)), "");
  ASSERT_EQ(faults(request.bind(*model, {})), "");
  EXPECT_EQ(request.lengths(), (std::vector<std::int32_t>{4, 4}));
  EXPECT_EQ(request.outputs(), kAllOutputs);
  const ModelInferRequest sent = written(request, 0, {"encoder_6", 6, 1, false});
  EXPECT_EQ(sent.raw_input_contents(0), fixture::raw64({11, 12, 13, 91, 5, 5}));
  EXPECT_EQ(sent.raw_input_contents(1), fixture::raw64({1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(sent.outputs_size(), 0);
}

TEST(InferRequest, OutputsOnRequestAreLeftOutUnlessTheyAreNamed) {
  auto deployment = fixture::deployment();
  deployment.mutable_model()->mutable_outputs(1)->set_on_request(true);
  ASSERT_EQ(faults(check_deployment(deployment)), "");
  const auto model = make_model(deployment, deployment.model(), 0);
  const auto asked = [&](const ModelInferRequest& message) {
    const std::string body = message.SerializeAsString();
    InferRequest request;
    EXPECT_EQ(faults(request.parse(body)), "");
    EXPECT_EQ(faults(request.bind(*model, {})), "");
    const ModelInferRequest sent = written(request, 0, {"encoder_6", 6, 1, false});
    std::vector<std::string> names;
    for (const auto& output : sent.outputs()) names.push_back(output.name());
    return names;
  };
  auto message = two_rows();
  EXPECT_EQ(asked(message), (std::vector<std::string>{"hidden", "pooled"}));
  message.clear_outputs();
  EXPECT_EQ(asked(message), (std::vector<std::string>{"hidden", "label"}));
  message.add_outputs()->set_name("pooled");
  EXPECT_EQ(asked(message), (std::vector<std::string>{"pooled"}));

  for (auto& output : *deployment.mutable_model()->mutable_outputs()) output.set_on_request(true);
  EXPECT_NE(faults(check_deployment(deployment)), "");
}

TEST(InferRequest, TheLastTokenOfTheMaskDecidesTheLength) {
  const auto model = fixture::model(0);
  auto message = two_rows();
  message.set_raw_input_contents(1, fixture::raw64({0, 0, 0, 1, 0, std::int64_t{1} << 40, 0, 0}));
  const std::string body = message.SerializeAsString();
  InferRequest request;
  ASSERT_EQ(faults(request.parse(body)), "");
  ASSERT_EQ(faults(request.bind(*model, {})), "");
  EXPECT_EQ(request.lengths(), (std::vector<std::int32_t>{4, 2}));
  EXPECT_EQ(written(request, 0, {"r", 4, 1, false}).raw_input_contents(1), fixture::raw64({0, 0, 0, 1}));
}

class EveryModel : public testing::TestWithParam<unsigned> {
 protected:
  void check(const ModelInferRequest& message, const std::string& body) {
    InferRequest request;
    ASSERT_EQ(faults(request.parse(body)), "");
    ASSERT_EQ(faults(request.bind(*model_, {})), "");
    const auto expected = reference::lengths(message, *model_, {});
    ASSERT_TRUE(expected.has_value());
    ASSERT_EQ(request.lengths(), *expected);
    EXPECT_EQ(request.model_name(), message.model_name());
    EXPECT_EQ(request.model_version(), message.model_version());
    EXPECT_EQ(request.id(), message.id());
    for (std::size_t row = 0; row < expected->size(); ++row) {
      for (const auto& runtime : fixture::runtimes()) {
        if ((*expected)[row] > runtime.max_length) continue;
        const auto wanted = reference::row(message, *model_, row, (*expected)[row], runtime);
        const auto sent = written(request, row, runtime);
        ASSERT_EQ(sent.ByteSizeLong(), wanted.ByteSizeLong());
        ASSERT_EQ(reference::difference(wanted, sent), "") << row << " " << runtime.name;
      }
    }
  }

  std::shared_ptr<const ModelSpec> model_ = fixture::model(GetParam());
  fixture::Random random_{100 + GetParam()};
};

TEST_P(EveryModel, RowsAreAsTheReferenceHasThem) {
  for (int i = 0; i < 400; ++i) {
    const auto message = fixture::random_request(random_, *model_);
    check(message, message.SerializeAsString());
    if (HasFatalFailure()) FAIL() << message.ShortDebugString();
  }
}

// Rows of several requests in one are those rows, one after the other.
TEST_P(EveryModel, ABatchIsItsRows) {
  for (int i = 0; i < 200; ++i) {
    std::vector<std::string> bodies;
    std::vector<ModelInferRequest> messages;
    for (std::size_t n = 0; n < 1 + fixture::below(random_, 4); ++n) {
      auto message = fixture::random_request(random_, *model_);
      message.clear_parameters();
      bodies.push_back(message.SerializeAsString());
      messages.push_back(std::move(message));
    }
    std::vector<InferRequest> requests(bodies.size());
    std::vector<WorkerRequest::Row> rows;
    std::int32_t longest = 1;
    OutputSet outputs = 0;
    for (std::size_t n = 0; n < bodies.size(); ++n) {
      ASSERT_EQ(faults(requests[n].parse(bodies[n])), "");
      ASSERT_EQ(faults(requests[n].bind(*model_, {})), "");
      EXPECT_TRUE(requests[n].goes_with(requests[0]));
      outputs |= requests[n].outputs();
      for (std::size_t row = 0; row < requests[n].lengths().size(); ++row) {
        rows.push_back({&requests[n], row, requests[n].outputs()});
        longest = std::max(longest, requests[n].lengths()[row]);
      }
    }
    const RuntimeInfo runtime{"r", longest + static_cast<std::int32_t>(fixture::below(random_, 9)), 64, false};
    ModelInferRequest wanted;
    for (std::size_t at = 0; at < rows.size(); ++at) {
      const auto n = static_cast<std::size_t>(rows[at].request - requests.data());
      const auto row = reference::row(messages[n], *model_, rows[at].row, requests[n].lengths()[rows[at].row], runtime);
      if (at == 0) {
        wanted = row;
        continue;
      }
      for (int input = 0; input < row.inputs_size(); ++input) {
        wanted.mutable_inputs(input)->set_shape(0, static_cast<std::int64_t>(at) + 1);
        wanted.mutable_raw_input_contents(input)->append(row.raw_input_contents(input));
      }
    }
    if (rows.size() > 1) wanted.clear_id();
    wanted.clear_outputs();
    for (std::size_t o = 0; outputs != kAllOutputs && o < model_->outputs.size(); ++o) {
      if ((outputs >> o & 1) != 0) wanted.add_outputs()->set_name(model_->outputs[o].name);
    }
    const auto sent = written(rows, runtime, runtime.max_length);
    ASSERT_EQ(sent.ByteSizeLong(), wanted.ByteSizeLong());
    ASSERT_EQ(reference::difference(wanted, sent), "");
  }
}

TEST(InferRequest, GoesWithThoseOfTheSameParameters) {
  const auto model = fixture::model(0);
  const auto other_model = fixture::model(0);
  const std::string red = two_rows().SerializeAsString();
  auto message = two_rows();
  (*message.mutable_parameters())["timeout"].set_int64_param(7);  // for the gateway, not forwarded
  message.set_id("another");
  const std::string also_red = message.SerializeAsString();
  (*message.mutable_parameters())["colour"].set_string_param("blue");
  const std::string blue = message.SerializeAsString();
  InferRequest requests[4];
  const std::string* bodies[] = {&red, &also_red, &blue, &red};
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(faults(requests[i].parse(*bodies[i])), "");
    ASSERT_EQ(faults(requests[i].bind(i == 3 ? *other_model : *model, {})), "");
  }
  EXPECT_TRUE(requests[0].goes_with(requests[1]));
  EXPECT_FALSE(requests[0].goes_with(requests[2]));
  EXPECT_FALSE(requests[0].goes_with(requests[3]));
}

TEST_P(EveryModel, UnpackedFieldsReadTheSame) {
  for (int i = 0; i < 150; ++i) {
    const auto message = fixture::random_request(random_, *model_);
    const std::string body = fixture::serialize_unpacked(message);
    ModelInferRequest same;
    ASSERT_TRUE(same.ParseFromString(body));
    ASSERT_EQ(reference::difference(message, same), "");
    check(message, body);
    if (HasFatalFailure()) FAIL() << message.ShortDebugString();
  }
}

TEST_P(EveryModel, FieldsOfALaterProtocolAreLeftOut) {
  for (int i = 0; i < 50; ++i) {
    const auto message = fixture::random_request(random_, *model_);
    auto extended = message;
    auto* unknown = ModelInferRequest::GetReflection()->MutableUnknownFields(&extended);
    unknown->AddVarint(99, 1);
    unknown->AddLengthDelimited(100, "later");
    auto* input = extended.mutable_inputs(0);
    ModelInferRequest::InferInputTensor::GetReflection()->MutableUnknownFields(input)->AddFixed64(8, 1);
    check(message, extended.SerializeAsString());
    if (HasFatalFailure()) FAIL() << message.ShortDebugString();
  }
}

TEST_P(EveryModel, EveryCutIsJudgedAsProtobufJudgesIt) {
  const google::protobuf::LogSilencer silencer;  // it complains of cut texts
  for (int i = 0; i < 20; ++i) {
    const auto message = fixture::random_request(random_, *model_);
    const std::string body = message.SerializeAsString();
    for (std::size_t size = 0; size <= body.size(); ++size) {
      const std::string cut = body.substr(0, size);
      InferRequest request;
      const bool accepted = !request.parse(cut);
      ASSERT_EQ(accepted, ModelInferRequest().ParseFromString(cut)) << size << " of " << message.ShortDebugString();
      ASSERT_EQ(reference::check_request(cut, *model_, {}, fixture::runtimes()), "");
    }
  }
}

TEST_P(EveryModel, DamagedMessagesAreRefusedOrReadAsProtobufReadsThem) {
  int accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto message = fixture::random_request(random_, *model_);
    std::string body =
        fixture::chance(random_, 80) ? message.SerializeAsString() : fixture::serialize_unpacked(message);
    body = fixture::mutated(random_, std::move(body));
    ASSERT_EQ(reference::check_request(body, *model_, {}, fixture::runtimes()), "") << testing::PrintToString(body);
    InferRequest request;
    if (!request.parse(body) && !request.bind(*model_, {})) ++accepted;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 4900);
}

INSTANTIATE_TEST_SUITE_P(Gateway, EveryModel, testing::Range(0U, fixture::kModels));

TEST(WorkerRequest, ItsTokensAreTheRuntimesUnlessItIsDynamic) {
  EXPECT_EQ(WorkerRequest::tokens(3, {"r", 8, 1, false}), 8);
  EXPECT_EQ(WorkerRequest::tokens(3, {"r", 8, 1, true}), 3);
}

}  // namespace
}  // namespace arlo::gateway
