// Tensors of a fixed size: models that have nothing else, and inputs that stand beside token ids.

#include <gtest/gtest.h>

#include <google/protobuf/text_format.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gateway_fixture.h"
#include "rewrite/request.h"

namespace arlo::gateway {
namespace {

using inference::ModelInferRequest;

v1::Deployment deployment_of(const std::string& inputs, const std::string& outputs = "", int length = 5) {
  const std::string text = "version: 1 model { name: \"vit\" slo_ms: 100 default_timeout_ms: 2000 " + inputs +
                           (outputs.empty() ? "outputs { name: \"logits\" datatype: \"FP32\" dims: 3 }" : outputs) +
                           "} runtimes { name: \"vit_5\" max_length: " + std::to_string(length) +
                           " max_batch: 8 capacity: 1 latency { length: 5 batch: 1 latency_us: 10 } }";
  v1::Deployment deployment;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &deployment)) << text;
  return deployment;
}

const char* const kPixels = R"(inputs { name: "pixels" datatype: "FP32" role: ROLE_TENSOR dims: 1 dims: 2 dims: 2 })";
const char* const kTask = R"(inputs { name: "task" datatype: "INT32" role: ROLE_TENSOR dims: 1 optional: true })";
const char* const kIds = R"(inputs { name: "ids" datatype: "INT64" role: ROLE_IDS pad_value: 5 })";

std::string raw(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

void add(ModelInferRequest& request, const char* name, const char* datatype, const std::vector<std::int64_t>& shape) {
  auto* input = request.add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->mutable_shape()->Add(shape.begin(), shape.end());
}

ModelInferRequest two_pictures() {
  ModelInferRequest request;
  request.set_model_name("vit");
  add(request, "pixels", "FP32", {2, 1, 2, 2});
  request.add_raw_input_contents(raw({1, 2, 3, 4, 5, 6, 7, 8}));
  return request;
}

struct Tried {
  explicit Tried(const ModelInferRequest& message, const v1::Deployment& deployment)
      : model(make_model(deployment, deployment.model(), 0)), body(message.SerializeAsString()) {
    EXPECT_EQ(faults(check_deployment(deployment)), "");
    fault = faults(request.parse(body));
    if (fault.empty()) fault = faults(request.bind(*model, {}));
  }
  std::shared_ptr<const ModelSpec> model;
  std::string body;
  InferRequest request;
  std::string fault;
};

ModelInferRequest sent(const std::vector<WorkerRequest::Row>& rows, std::int32_t tokens) {
  const RuntimeInfo runtime{"vit_5", 5, 8, false};
  const WorkerRequest request(rows, runtime, tokens);
  std::string out(request.size() + 1, '\x5a');
  request.write(out.data());
  EXPECT_EQ(out.back(), '\x5a') << "written past its size";
  out.pop_back();
  ModelInferRequest message;
  EXPECT_TRUE(message.ParseFromString(out));
  return message;
}

std::vector<std::int64_t> shape(const ModelInferRequest& message, int input) {
  return {message.inputs(input).shape().begin(), message.inputs(input).shape().end()};
}

TEST(Tensors, AreCutIntoRowsAndGoAsTheyCame) {
  const Tried of(two_pictures(), deployment_of(kPixels));
  ASSERT_EQ(of.fault, "");
  EXPECT_EQ(of.request.lengths(), (std::vector<std::int32_t>{5, 5}));
  const Tried other(two_pictures(), deployment_of(kPixels));
  const auto message = sent({{&of.request, 1, 1}, {&other.request, 0, 1}, {&of.request, 0, 1}}, 5);
  EXPECT_EQ(shape(message, 0), (std::vector<std::int64_t>{3, 1, 2, 2}));
  EXPECT_EQ(message.inputs(0).datatype(), "FP32");
  EXPECT_EQ(message.raw_input_contents(0), raw({5, 6, 7, 8, 1, 2, 3, 4, 1, 2, 3, 4}));
  std::vector<std::int64_t> ids{1, 2};
  of.request.ids(0, ids);
  EXPECT_TRUE(ids.empty());
}

TEST(Tensors, MayComeTyped) {
  auto message = two_pictures();
  message.clear_raw_input_contents();
  for (int i = 1; i <= 8; ++i) message.mutable_inputs(0)->mutable_contents()->add_fp32_contents(static_cast<float>(i));
  const Tried of(message, deployment_of(kPixels));
  ASSERT_EQ(of.fault, "");
  EXPECT_EQ(of.request.cell(1, 0), raw({5, 6, 7, 8}));
  message.mutable_inputs(0)->mutable_contents()->add_fp32_contents(9);
  EXPECT_EQ(Tried(message, deployment_of(kPixels)).fault, "input 'pixels' carries 9 elements; its shape needs 8");
  message.mutable_inputs(0)->mutable_contents()->clear_fp32_contents();
  for (int i = 0; i < 8; ++i) message.mutable_inputs(0)->mutable_contents()->add_int_contents(i);
  EXPECT_EQ(Tried(message, deployment_of(kPixels)).fault, "input 'pixels' of datatype FP32 must use fp32_contents");
}

TEST(Tensors, StandBesideTokens) {
  ModelInferRequest request;
  request.set_model_name("vit");
  add(request, "task", "INT32", {2, 1});
  add(request, "ids", "INT64", {2, 3});
  request.mutable_inputs(0)->mutable_contents()->add_int_contents(7);
  request.mutable_inputs(0)->mutable_contents()->add_int_contents(-1);
  for (int i = 0; i < 6; ++i) request.mutable_inputs(1)->mutable_contents()->add_int64_contents(i);
  const auto deployment = deployment_of(std::string(kIds) + kTask);
  const Tried of(request, deployment);
  ASSERT_EQ(of.fault, "");
  EXPECT_EQ(of.request.lengths(), (std::vector<std::int32_t>{3, 3}));
  const auto message = sent({{&of.request, 1, 1}, {&of.request, 0, 1}}, 4);
  EXPECT_EQ(shape(message, 0), (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(shape(message, 1), (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(message.raw_input_contents(0), fixture::raw64({3, 4, 5, 5, 0, 1, 2, 5}));
  const std::vector<std::int32_t> tasks{-1, 7};
  EXPECT_EQ(message.raw_input_contents(1), std::string(reinterpret_cast<const char*>(tasks.data()), 8));

  request.mutable_inputs()->DeleteSubrange(0, 1);
  const Tried without(request, deployment);
  ASSERT_EQ(without.fault, "");
  EXPECT_EQ(sent({{&without.request, 0, 1}}, 3).raw_input_contents(1), std::string(4, '\0'));
}

TEST(Tensors, OfAnotherShapeAreRefused) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::string>> wrong = {
      {{}, "input 'pixels' has shape []; [rows, 1, 2, 2] is needed"},
      {{2, 4}, "input 'pixels' has shape [2, 4]; [rows, 1, 2, 2] is needed"},
      {{2, 1, 2, 3}, "input 'pixels' has shape [2, 1, 2, 3]; [rows, 1, 2, 2] is needed"},
      {{2, 1, 2, 2, 1}, "input 'pixels' has shape [2, 1, 2, 2, 1]; [rows, 1, 2, 2] is needed"},
      {{0, 1, 2, 2}, "input 'pixels' has 0 rows; at least 1 is needed"},
      {{1, 1, 2, 2}, "input 'pixels' carries 32 bytes; its shape and datatype need 16"},
      {{std::int64_t{1} << 62, 1, 2, 2},
       "input 'pixels' has 4611686018427387904 rows; at most 256 are taken in one request"},
  };
  for (const auto& [given, message] : wrong) {
    auto request = two_pictures();
    request.mutable_inputs(0)->mutable_shape()->Clear();
    request.mutable_inputs(0)->mutable_shape()->Add(given.begin(), given.end());
    EXPECT_EQ(Tried(request, deployment_of(kPixels)).fault, message);
  }
  auto request = two_pictures();
  request.mutable_inputs(0)->set_name("text");
  request.mutable_inputs(0)->set_datatype("BYTES");
  EXPECT_EQ(Tried(request, deployment_of(kPixels)).fault,
            "model 'vit' takes tensors and no text: it was compiled without a tokenizer");
}

TEST(Tensors, DeploymentsSayWhatTheyAre) {
  const std::string other = R"(inputs { name: "kind" datatype: "INT64" role: ROLE_OTHER })";
  const std::vector<std::pair<v1::Deployment, std::string>> bad = {
      {deployment_of(kPixels + other),
       "model.inputs has inputs for each token, and none of role ROLE_IDS that says how many there are"},
      {deployment_of(kTask), "model.inputs are all optional: a request would have no rows"},
      {deployment_of(R"(inputs { name: "x" datatype: "BYTES" role: ROLE_TENSOR })"),
       "model 'vit' takes tensors of varying size, or makes several rows of one: it is of use as a variant of a "
       "pipeline only"},
      {deployment_of(R"(inputs { name: "x" datatype: "FP32" role: ROLE_TENSOR dims: 0 })"),
       "model.inputs: 'x' needs dims above 0, or -1 for the first, and at most 1073741824 bytes a row"},
      {deployment_of(R"(inputs { name: "x" datatype: "FP32" role: ROLE_TENSOR dims: 65536 dims: 65536 dims: 65536 })"),
       "model.inputs: 'x' needs dims above 0, or -1 for the first, and at most 1073741824 bytes a row"},
      {deployment_of(R"(inputs { name: "x" datatype: "FP32" role: ROLE_TENSOR pad_value: 1 })"),
       "model.inputs: 'x' has a pad_value; only that of whole numbers may be set"},
      {deployment_of(R"(inputs { name: "ids" datatype: "INT64" role: ROLE_IDS dims: 3 })"),
       "model.inputs: 'ids' has dims and is no ROLE_TENSOR"},
      {deployment_of(kPixels, R"(outputs { name: "hidden" datatype: "FP32" token_level: true })"),
       "model.outputs: 'hidden' is of tokens, and rows have none"},
  };
  for (const auto& [deployment, message] : bad) EXPECT_EQ(faults(check_deployment(deployment)), message);
  auto two = deployment_of(kPixels);
  auto* second = two.add_runtimes();
  *second = two.runtimes(0);
  second->set_name("vit_6");
  second->set_max_length(6);
  EXPECT_EQ(faults(check_deployment(two)),
            "runtimes: 'vit_6' is of a model without tokens, whose rows are all of one length");
}

}  // namespace
}  // namespace arlo::gateway
