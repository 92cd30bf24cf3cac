// Models of tensors: what a deployment may say of them, rows of every kind in and out, and children of rows.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gateway_fixture.h"
#include "rewrite/model.h"
#include "rewrite/request.h"
#include "rewrite/response.h"

namespace arlo::gateway {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;

v1::Model parsed(const std::string& text) {
  v1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model));
  return model;
}

constexpr const char* kText = R"(
  name: "cut" slo_ms: 100 default_timeout_ms: 2000 counts: "count"
  inputs { name: "page" datatype: "BYTES" role: ROLE_TENSOR dims: 1 }
  inputs { name: "strip" datatype: "UINT8" role: ROLE_TENSOR dims: -1 dims: 3 pad_value: 7 }
  inputs { name: "place" datatype: "FP32" role: ROLE_TENSOR dims: 2 }
  outputs { name: "count" datatype: "INT32" dims: 1 on_request: true }
  outputs { name: "score" datatype: "FP32" dims: 2 }
  outputs { name: "parts" datatype: "BYTES" dims: 1 of_children: true }
  outputs { name: "boxes" datatype: "INT32" dims: 2 of_children: true })";

std::shared_ptr<const ModelSpec> spec() {
  v1::Deployment deployment;
  *deployment.mutable_model() = parsed(kText);
  auto* runtime = deployment.add_runtimes();
  runtime->set_max_length(4);
  return make_model(deployment, deployment.model(), 0);
}

std::string bytes(const std::vector<std::string>& elements) {
  std::string raw;
  for (const auto& each : elements) {
    const auto size = static_cast<std::uint32_t>(each.size());
    raw.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(each);
  }
  return raw;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

ModelInferRequest two_children() {
  ModelInferRequest request;
  request.set_model_name("cut");
  const auto add = [&](const char* name, const char* datatype, const std::vector<std::int64_t>& shape,
                       const std::string& content) {
    auto* input = request.add_inputs();
    input->set_name(name);
    input->set_datatype(datatype);
    for (const auto dim : shape) input->add_shape(dim);
    request.add_raw_input_contents(content);
  };
  add("place", "FP32", {2, 2}, raw<float>({1, 2, 3, 4}));
  add("strip", "UINT8", {2, 2, 3}, "abcdefghijkl");
  add("page", "BYTES", {2, 1}, bytes({"first", ""}));
  return request;
}

TEST(Tensors, RowsAreCutAndWrittenAsTheyCame) {
  const auto model = spec();
  const std::string body = two_children().SerializeAsString();
  InferRequest request;
  ASSERT_EQ(faults(request.parse(body)), "");
  ASSERT_EQ(faults(request.bind(*model, {})), "");
  EXPECT_EQ(request.lengths(), (std::vector<std::int32_t>{2, 2}));
  EXPECT_EQ(request.cell(0, 0), "first");
  EXPECT_EQ(request.cell(1, 1), "ghijkl");
  EXPECT_EQ(request.cell(1, 2), raw<float>({3, 4}));

  // A row of views beside it, of another length; padded to the longest.
  const std::string place = raw<float>({5, 6});
  const std::vector<std::string_view> cells = {"second", "xyz", place};
  InferRequest other;
  ASSERT_EQ(faults(other.bind_row(*model, request.outputs(), cells)), "");
  EXPECT_EQ(other.lengths(), std::vector<std::int32_t>{1});
  const RuntimeInfo runtime{"cut_1", 4, 8, true};
  const std::vector<WorkerRequest::Row> rows = {{&request, 1, request.outputs()}, {&other, 0, other.outputs()}};
  const WorkerRequest batch(rows, runtime, WorkerRequest::tokens(2, runtime));
  std::string out(batch.size(), '\0');
  batch.write(out.data());
  ModelInferRequest sent;
  ASSERT_TRUE(sent.ParseFromString(out));
  ASSERT_EQ(sent.inputs_size(), 3);
  EXPECT_EQ(std::vector<std::int64_t>(sent.inputs(0).shape().begin(), sent.inputs(0).shape().end()),
            (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(std::vector<std::int64_t>(sent.inputs(1).shape().begin(), sent.inputs(1).shape().end()),
            (std::vector<std::int64_t>{2, 2, 3}));
  EXPECT_EQ(sent.raw_input_contents(0), bytes({"", "second"}));
  EXPECT_EQ(sent.raw_input_contents(1), "ghijklxyz\7\7\7");
  EXPECT_EQ(sent.raw_input_contents(2), raw<float>({3, 4, 5, 6}));
}

TEST(Tensors, RequestsThatDoNotFit) {
  const auto model = spec();
  const std::vector<std::pair<std::function<void(ModelInferRequest&)>, std::string>> bad = {
      {[](auto& r) { r.mutable_inputs(0)->set_name("where"); }, "unknown input 'where'"},
      {[](auto& r) {
         *r.add_inputs() = r.inputs(0);
         r.add_raw_input_contents(r.raw_input_contents(0));
       },
       "is given twice"},
      {[](auto& r) { r.mutable_inputs(0)->set_datatype("FP64"); }, "FP32 is needed"},
      {[](auto& r) { r.mutable_inputs(0)->set_shape(1, 3); }, "has shape [2, 3]; [2, 2] is needed"},
      {[](auto& r) { r.mutable_inputs(0)->set_shape(0, 1); }, "has shape [1, 2]; [2, 2] is needed"},
      {[](auto& r) { r.mutable_inputs(1)->set_shape(1, std::int64_t{1} << 62); },
       "has length 4611686018427387904; model 'cut' takes 1 to 4"},
      {[](auto& r) { r.mutable_inputs(1)->set_shape(1, -2); }, "has shape [2, -2, 3]; [2, -1, 3] is needed"},
      {[](auto& r) { r.mutable_inputs(1)->set_shape(1, 3); }, "carries 12 bytes; its shape and datatype need 18"},
      {[](auto& r) {
         r.mutable_inputs(1)->set_shape(1, 5);
         r.set_raw_input_contents(1, std::string(30, 'x'));
       },
       "has length 5; model 'cut' takes 1 to 4"},
      {[](auto& r) {
         r.mutable_inputs(1)->set_shape(1, 0);
         r.set_raw_input_contents(1, "");
       },
       "has length 0"},
      {[](auto& r) { r.set_raw_input_contents(2, bytes({"one"})); }, "is cut short"},
      {[](auto& r) { r.set_raw_input_contents(2, bytes({"one", "two", "three"})); }, "more elements"},
      {[](auto& r) { r.set_raw_input_contents(2, std::string("\xff\xff\xff\xff", 4)); }, "is cut short"},
      {[](auto& r) { r.clear_inputs(), r.clear_raw_input_contents(); }, "is missing"},
  };
  for (const auto& [damage, message] : bad) {
    auto message_of = two_children();
    damage(message_of);
    const std::string body = message_of.SerializeAsString();
    InferRequest request;
    ASSERT_EQ(faults(request.parse(body)), "");
    const auto fault = request.bind(*model, {});
    ASSERT_TRUE(fault.has_value()) << message;
    EXPECT_EQ(fault->code, Code::kInvalidArgument);
    EXPECT_NE(fault->message.find(message), std::string::npos) << fault->message;
  }
}

ModelInferResponse answer() {
  ModelInferResponse response;
  const auto add = [&](const char* name, const char* datatype, const std::vector<std::int64_t>& shape,
                       const std::string& content) {
    auto* output = response.add_outputs();
    output->set_name(name);
    output->set_datatype(datatype);
    for (const auto dim : shape) output->add_shape(dim);
    response.add_raw_output_contents(content);
  };
  add("boxes", "INT32", {3, 2}, raw<std::int32_t>({1, 2, 3, 4, 5, 6}));
  add("parts", "BYTES", {3, 1}, bytes({"a", "", "ccc"}));
  add("count", "INT32", {3, 1}, raw<std::int32_t>({2, 0, 1}));
  add("score", "FP32", {3, 2}, raw<float>({1, 2, 3, 4, 5, 6}));
  return response;
}

TEST(Tensors, ChildrenAreTheirRowsOwn) {
  const auto model = spec();
  const std::string body = answer().SerializeAsString();
  WorkerResponse response;
  ASSERT_EQ(faults(response.parse(body, *model, 0b1111, 3, 1)), "");
  const std::vector<std::vector<std::string_view>> wanted = {{"a", ""}, {}, {"ccc"}};
  for (std::size_t row = 0; row < 3; ++row) {
    const auto one = response.row(row, kAllOutputs);
    EXPECT_EQ(one.children(2), static_cast<std::int64_t>(wanted[row].size()));
    EXPECT_EQ(one.children(1), 2);  // its first dimension
    std::vector<std::string_view> parts;
    one.cut(2, wanted[row].size(), parts);
    EXPECT_EQ(parts, wanted[row]);
  }
  std::vector<std::string_view> boxes;
  response.row(2, kAllOutputs).cut(3, 1, boxes);
  EXPECT_EQ(boxes, std::vector<std::string_view>{raw<std::int32_t>({5, 6})});
  response.row(1, kAllOutputs).cut(1, 2, boxes);
  EXPECT_EQ(boxes.at(1), raw<float>({4}));
}

TEST(Tensors, AnswersThatCannotBe) {
  const auto model = spec();
  const std::vector<std::pair<std::function<void(ModelInferResponse&)>, std::string>> bad = {
      {[](auto& r) { r.set_raw_output_contents(2, raw<std::int32_t>({2, 0, 2})); }, "4 were counted"},
      {[](auto& r) { r.set_raw_output_contents(2, raw<std::int32_t>({4, -2, 1})); }, "says -2 children"},
      {[](auto& r) { r.set_raw_output_contents(2, raw<std::int32_t>({1 << 17, 0, 1})); }, "says 131072 children"},
      {[](auto& r) { r.mutable_outputs(0)->set_shape(0, 4); }, "is of 4 children; 3 were counted"},
      {[](auto& r) { r.mutable_outputs(0)->set_shape(0, -1); }, "shape other than"},
      {[](auto& r) { r.mutable_outputs(0)->set_shape(1, 3); }, "for each row, not [2]"},
      {[](auto& r) { r.mutable_outputs(0)->set_shape(1, std::int64_t{1} << 62); }, "for each row, not [2]"},
      {[](auto& r) { r.set_raw_output_contents(1, bytes({"a", "b"})); }, "does not carry what its shape says"},
      {[](auto& r) { r.set_raw_output_contents(1, "ab"); }, "does not carry what its shape says"},
      {[](auto& r) { r.mutable_outputs(2)->set_datatype("FP32"); }, "datatype FP32"},
      {[](auto& r) { r.mutable_outputs(2)->set_name("number"); }, "'count' is missing"},
  };
  for (const auto& [damage, message] : bad) {
    auto damaged = answer();
    damage(damaged);
    const std::string body = damaged.SerializeAsString();
    WorkerResponse response;
    const auto fault = response.parse(body, *model, 0b1111, 3, 1);
    ASSERT_TRUE(fault.has_value()) << message;
    EXPECT_NE(fault->message.find(message), std::string::npos) << fault->message;
  }
  WorkerResponse response;
  const std::string body = answer().SerializeAsString();
  EXPECT_NE(faults(response.parse(body, *model, 0b1100, 3, 1)).find("nothing says how many"), std::string::npos);
}

TEST(Tensors, WhatIsNoModel) {
  const std::vector<std::pair<std::function<void(v1::Model&)>, std::string>> bad = {
      {[](auto& m) { m.mutable_inputs(0)->set_role(v1::InputTensor::ROLE_IDS); },
       "is beside token ids, and not of a fixed size"},
      {[](auto& m) { m.mutable_inputs(0)->set_dims(0, 2); }, "one element"},
      {[](auto& m) { m.mutable_inputs(2)->set_dims(0, 0); }, "needs dims above 0"},
      {[](auto& m) { m.mutable_inputs(1)->set_dims(1, -1); }, "needs dims above 0"},
      {[](auto& m) { m.mutable_inputs(2)->set_dims(0, std::int64_t{1} << 40); }, "at most 1073741824 bytes a row"},
      {[](auto& m) { m.mutable_inputs(2)->set_datatype("FP8"); }, "unknown datatype"},
      {[](auto& m) { m.mutable_inputs(2)->set_pad_value(1); }, "has a pad_value"},
      {[](auto& m) { m.set_tokenizer("{}"); }, "has a tokenizer"},
  };
  EXPECT_EQ(faults(check_tensors(parsed(kText))), "");
  EXPECT_EQ(faults(check_children(parsed(kText))), "");
  for (const auto& [damage, message] : bad) {
    auto model = parsed(kText);
    damage(model);
    EXPECT_NE(faults(check_tensors(model)).find(message), std::string::npos) << faults(check_tensors(model));
  }
  auto model = parsed(kText);
  model.clear_counts();
  EXPECT_NE(faults(check_children(model)).find("no output counts them"), std::string::npos);
  model.set_counts("score");
  EXPECT_NE(faults(check_children(model)).find("no output of one INT32"), std::string::npos);
}

}  // namespace
}  // namespace arlo::gateway
