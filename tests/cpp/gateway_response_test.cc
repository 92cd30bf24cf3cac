// Workers' answers: trimmed, filled up, put together into the client's answer; and unusable ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gateway_fixture.h"
#include "gateway_reference.h"
#include "rewrite/response.h"

namespace arlo::gateway {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;

constexpr Timing kTiming{.level = 64,
                         .max_length = 512,
                         .queue_us = 0,
                         .execute_us = 127,
                         .total_us = std::int64_t{1} << 40,
                         .computed_tokens = 128,
                         .demoted = 1,
                         .batch_rows = 5};

// A bound request together with the bytes that it points into.
struct Bound {
  Bound(const ModelInferRequest& from, const ModelSpec& model) : message(from), body(from.SerializeAsString()) {
    auto fault = request.parse(body);
    if (!fault) fault = request.bind(model, {});
    EXPECT_FALSE(fault.has_value()) << fault->message;
  }
  ModelInferRequest message;
  std::string body;
  InferRequest request;
};

// Rows of these lengths, under the model's mask.
ModelInferRequest request_of(const ModelSpec& model, const std::vector<std::int64_t>& lengths) {
  ModelInferRequest request;
  request.set_model_name(model.name);
  const std::int64_t width = *std::max_element(lengths.begin(), lengths.end());
  for (const auto& spec : model.inputs) {
    if (spec.optional) continue;
    auto* input = request.add_inputs();
    input->set_name(spec.name);
    input->set_datatype(spec.datatype);
    input->add_shape(static_cast<std::int64_t>(lengths.size()));
    input->add_shape(width);
    std::vector<std::int64_t> values;
    for (const auto length : lengths) {
      for (std::int64_t i = 0; i < width; ++i) values.push_back(i < length ? 1 : 0);
    }
    request.add_raw_input_contents(spec.item == 8 ? fixture::raw64(values) : fixture::raw32(values));
  }
  return request;
}

struct Merged {
  MaybeFault fault;
  ModelInferResponse answer;
  ResponsePlan plan;
};

Merged merge(const ModelSpec& model, const InferRequest& request, const std::vector<std::string>& bodies,
             const std::vector<std::int32_t>& padded, bool streamed = false) {
  Merged out;
  std::vector<RowResponse> rows(bodies.size());
  for (std::size_t r = 0; r < bodies.size() && !out.fault; ++r) {
    WorkerResponse worker;
    out.fault = worker.parse(bodies[r], model, request.outputs(), 1, padded[r]);
    if (!out.fault) rows[r] = worker.row(0, request.outputs());
  }
  if (!out.fault) out.fault = out.plan.build(model, request, rows, kTiming, streamed);
  if (out.fault) return out;
  std::string bytes(out.plan.size() + 1, '\x5a');
  out.plan.write(bytes.data());
  EXPECT_EQ(bytes.back(), '\x5a') << "written past its size";
  bytes.pop_back();
  EXPECT_TRUE(out.answer.ParseFromString(bytes));
  return out;
}

void add_output(ModelInferResponse& answer, const char* name, const char* datatype, std::vector<std::int64_t> shape,
                const std::string& raw) {
  auto* output = answer.add_outputs();
  output->set_name(name);
  output->set_datatype(datatype);
  *output->mutable_shape() = {shape.begin(), shape.end()};
  answer.add_raw_output_contents(raw);
}

// Of model 0, sent with `padded` tokens: `hidden` is 8 bytes a token, the token's number in each of them.
ModelInferResponse answer_of(std::int32_t padded, char mark) {
  ModelInferResponse answer;
  answer.set_model_name("encoder_8");
  std::string hidden;
  for (std::int32_t i = 0; i < padded; ++i) hidden += std::string(8, static_cast<char>(mark + i));
  add_output(answer, "hidden", "FP32", {1, padded, 2}, hidden);
  add_output(answer, "pooled", "FP32", {1, 3}, std::string(12, mark));
  add_output(answer, "label", "BYTES", {1, 1}, std::string("\x02\0\0\0", 4) + mark + mark);
  return answer;
}

TEST(KnownAnswerBytes, CountsWhatTheModelSays) {
  const auto model = fixture::model(0);
  const auto known = [&](const std::vector<std::int64_t>& lengths, const std::vector<std::string>& outputs) {
    auto message = request_of(*model, lengths);
    for (const auto& name : outputs) message.add_outputs()->set_name(name);
    return known_answer_bytes(*model, Bound(message, *model).request);
  };
  constexpr std::size_t kHidden = 8, kPooled = 12;  // bytes of a token, of a row; `label` is BYTES, of any size
  EXPECT_EQ(known({5}, {"hidden"}), 5 * kHidden);
  EXPECT_EQ(known({5, 9, 2}, {"hidden"}), 3 * 9 * kHidden) << "filled to the longest row";
  EXPECT_EQ(known({5, 9, 2}, {"pooled"}), 3 * kPooled);
  EXPECT_EQ(known({5, 9, 2}, {"label"}), 0U);
  EXPECT_EQ(known({5, 9}, {}), 2 * 9 * kHidden + 2 * kPooled) << "all of them";
}

TEST(ResponsePlan, TrimsAndFillsUpToTheLongestRow) {
  const auto model = fixture::model(0);
  auto message = request_of(*model, {2, 3, 1});
  message.set_id("seven");
  const Bound bound(message, *model);
  const std::vector<std::string> bodies = {answer_of(8, 'A').SerializeAsString(), answer_of(3, 'a').SerializeAsString(),
                                           answer_of(16, '0').SerializeAsString()};
  const Merged merged = merge(*model, bound.request, bodies, {8, 3, 16});
  ASSERT_FALSE(merged.fault.has_value()) << merged.fault->message;
  const auto& answer = merged.answer;
  EXPECT_EQ(answer.model_name(), "encoder");
  EXPECT_EQ(answer.model_version(), "1");
  EXPECT_EQ(answer.id(), "seven");
  ASSERT_EQ(answer.outputs_size(), 3);
  ASSERT_EQ(answer.raw_output_contents_size(), 3);

  EXPECT_EQ(answer.outputs(0).name(), "hidden");
  EXPECT_EQ(answer.outputs(0).datatype(), "FP32");
  EXPECT_EQ(std::vector<std::int64_t>(answer.outputs(0).shape().begin(), answer.outputs(0).shape().end()),
            (std::vector<std::int64_t>{3, 3, 2}));
  const std::string zeros(8, '\0');
  auto token = [](char mark) { return std::string(8, mark); };
  EXPECT_EQ(answer.raw_output_contents(0),
            token('A') + token('B') + zeros + token('a') + token('b') + token('c') + token('0') + zeros + zeros);
  EXPECT_EQ(std::vector<std::int64_t>(answer.outputs(1).shape().begin(), answer.outputs(1).shape().end()),
            (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(answer.raw_output_contents(1), std::string(12, 'A') + std::string(12, 'a') + std::string(12, '0'));
  const std::string two("\x02\0\0\0", 4);
  EXPECT_EQ(answer.raw_output_contents(2), two + "AA" + two + "aa" + two + "00");
}

TEST(ResponsePlan, SaysHowTheAnswerCameToBe) {
  const auto model = fixture::model(0);
  for (const bool wants : {false, true}) {
    for (const bool streamed : {false, true}) {
      auto message = request_of(*model, {2});
      if (wants) (*message.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
      const Bound bound(message, *model);
      const std::vector<std::string> bodies = {answer_of(8, 'A').SerializeAsString()};
      const Merged merged = merge(*model, bound.request, bodies, {8}, streamed);
      ASSERT_FALSE(merged.fault.has_value());
      const auto& parameters = merged.answer.parameters();
      EXPECT_EQ(parameters.at("level").int64_param(), 64);
      EXPECT_EQ(parameters.at("max_length").int64_param(), 512);
      EXPECT_EQ(parameters.at("queue_us").int64_param(), 0);
      EXPECT_TRUE(parameters.at("queue_us").has_int64_param());
      EXPECT_EQ(parameters.at("execute_us").int64_param(), 127);
      EXPECT_EQ(parameters.at("total_us").int64_param(), std::int64_t{1} << 40);
      EXPECT_EQ(parameters.at("computed_tokens").int64_param(), 128);
      EXPECT_EQ(parameters.at("demoted").int64_param(), 1);
      EXPECT_EQ(parameters.at("batch_rows").int64_param(), 5);
      EXPECT_EQ(parameters.count("triton_final_response"), wants && streamed ? 1U : 0U);
      EXPECT_TRUE(!wants || !streamed || parameters.at("triton_final_response").bool_param());
      EXPECT_EQ(parameters.size(), wants && streamed ? 9U : 8U);
    }
  }
}

TEST(ResponsePlan, ReturnsOnlyWhatWasAskedFor) {
  const auto model = fixture::model(0);
  auto message = request_of(*model, {2});
  message.add_outputs()->set_name("label");
  message.add_outputs()->set_name("hidden");
  const Bound bound(message, *model);
  auto worker = answer_of(8, 'A');
  worker.mutable_outputs()->DeleteSubrange(1, 1);  // the worker need not send it either
  worker.mutable_raw_output_contents()->DeleteSubrange(1, 1);
  const std::vector<std::string> bodies = {worker.SerializeAsString()};
  const Merged merged = merge(*model, bound.request, bodies, {8});
  ASSERT_FALSE(merged.fault.has_value()) << merged.fault->message;
  ASSERT_EQ(merged.answer.outputs_size(), 2);
  EXPECT_EQ(merged.answer.outputs(0).name(), "hidden");
  EXPECT_EQ(merged.answer.outputs(1).name(), "label");
}

TEST(ResponsePlan, EmptyDimensionsAreNoTrouble) {
  const auto model = fixture::model(2);
  const Bound bound(request_of(*model, {2, 1}), *model);
  ModelInferResponse worker;
  add_output(worker, "score", "FP16", {1, 0}, "");
  add_output(worker, "hidden", "UINT8", {1, 4, 0, 2}, "");
  const std::vector<std::string> bodies(2, worker.SerializeAsString());
  const Merged merged = merge(*model, bound.request, bodies, {4, 4});
  ASSERT_FALSE(merged.fault.has_value()) << merged.fault->message;
  EXPECT_EQ(merged.answer.raw_output_contents(0), "");
  EXPECT_EQ(merged.answer.raw_output_contents(1), "");
  EXPECT_EQ(merged.answer.outputs(1).shape(2), 0);
}

TEST(WorkerResponse, CanBeParsedAgain) {
  const auto model = fixture::model(0);
  const Bound bound(request_of(*model, {2}), *model);
  const std::string body = answer_of(8, 'A').SerializeAsString();
  WorkerResponse worker;
  for (int i = 0; i < 2; ++i) ASSERT_FALSE(worker.parse(body, *model, kAllOutputs, 1, 8).has_value());
  const std::vector<RowResponse> rows = {worker.row(0, kAllOutputs)};
  ResponsePlan plan;
  ASSERT_FALSE(plan.build(*model, bound.request, rows, kTiming, false).has_value());
  std::string bytes(plan.size(), '\0');
  plan.write(bytes.data());
  ModelInferResponse answer;
  ASSERT_TRUE(answer.ParseFromString(bytes));
  EXPECT_EQ(answer.outputs_size(), 3);
}

class EveryModelsAnswers : public testing::TestWithParam<unsigned> {
 protected:
  std::shared_ptr<const ModelSpec> model_ = fixture::model(GetParam());
  fixture::Random random_{200 + GetParam()};
};

TEST_P(EveryModelsAnswers, AreMergedAsTheReferenceMerges) {
  for (int i = 0; i < 300; ++i) {
    const Bound bound(fixture::random_request(random_, *model_), *model_);
    std::vector<std::string> bodies;
    std::vector<ModelInferResponse> workers;
    std::vector<std::int32_t> padded;
    const auto open_dim = static_cast<std::int64_t>(fixture::below(random_, 4));
    for (const auto length : bound.request.lengths()) {
      padded.push_back(fixture::chance(random_, 50) ? length
                                                    : length + static_cast<std::int32_t>(fixture::below(random_, 40)));
      workers.push_back(fixture::random_answer(random_, *model_, padded.back(), open_dim));
      bodies.push_back(workers.back().SerializeAsString());
    }
    const bool streamed = fixture::chance(random_, 50);
    const Merged merged = merge(*model_, bound.request, bodies, padded, streamed);
    ASSERT_FALSE(merged.fault.has_value()) << merged.fault->message;
    const auto wanted =
        reference::merge(workers, bound.message, *model_, bound.request.lengths(), padded, kTiming, streamed);
    ASSERT_TRUE(wanted.has_value());
    ASSERT_EQ(reference::difference(*wanted, merged.answer), "") << bound.message.ShortDebugString();
    ASSERT_EQ(merged.plan.size(), wanted->ByteSizeLong());
  }
}

// The answer to a batch is that to each of its rows, one after the other.
TEST_P(EveryModelsAnswers, ToABatchAreCutIntoRows) {
  for (int i = 0; i < 200; ++i) {
    const Bound bound(fixture::random_request(random_, *model_), *model_);
    const auto& lengths = bound.request.lengths();
    const auto tokens = *std::max_element(lengths.begin(), lengths.end()) + static_cast<std::int32_t>(i % 3);
    const auto open_dim = static_cast<std::int64_t>(fixture::below(random_, 4));
    std::vector<std::string> bodies;
    ModelInferResponse batch;
    for (std::size_t row = 0; row < lengths.size(); ++row) {
      const auto answer = fixture::random_answer(random_, *model_, tokens, open_dim);
      bodies.push_back(answer.SerializeAsString());
      if (row == 0) {
        batch = answer;
        continue;
      }
      for (int output = 0; output < answer.outputs_size(); ++output) {
        batch.mutable_outputs(output)->set_shape(0, static_cast<std::int64_t>(row) + 1);
        batch.mutable_raw_output_contents(output)->append(answer.raw_output_contents(output));
      }
    }
    const std::string body = batch.SerializeAsString();
    WorkerResponse worker;
    const auto fault = worker.parse(body, *model_, kAllOutputs, lengths.size(), tokens);
    ASSERT_FALSE(fault.has_value()) << fault->message;
    std::vector<RowResponse> rows;
    for (std::size_t row = 0; row < lengths.size(); ++row) rows.push_back(worker.row(row, bound.request.outputs()));
    ResponsePlan plan;
    ASSERT_FALSE(plan.build(*model_, bound.request, rows, kTiming, false).has_value());
    std::string bytes(plan.size(), '\0');
    plan.write(bytes.data());
    ModelInferResponse cut;
    ASSERT_TRUE(cut.ParseFromString(bytes));
    const std::vector<std::int32_t> padded(lengths.size(), tokens);
    const Merged alone = merge(*model_, bound.request, bodies, padded);
    ASSERT_FALSE(alone.fault.has_value());
    ASSERT_EQ(reference::difference(alone.answer, cut), "");
  }
}

TEST_P(EveryModelsAnswers, WhenCutOrDamagedAreRefusedOrReadAsProtobufReadsThem) {
  for (int i = 0; i < 3000; ++i) {
    const Bound bound(request_of(*model_, {2, 3, 8}), *model_);
    const auto& runtime = fixture::runtimes()[i % 2 == 0 ? 0 : 1];
    std::string body = fixture::random_answer(random_, *model_, runtime.max_length, 1).SerializeAsString();
    if (i % 5 == 0) {
      body.resize(fixture::below(random_, body.size()));
    } else {
      body = fixture::mutated(random_, std::move(body));
    }
    ASSERT_EQ(reference::check_response(bound.body, body, *model_, {}, runtime), "") << testing::PrintToString(body);
  }
}

INSTANTIATE_TEST_SUITE_P(Gateway, EveryModelsAnswers, testing::Range(0U, fixture::kModels));

struct BadAnswer {
  std::string name;
  std::function<void(ModelInferResponse&)> damage;
  std::string message;
};

TEST(WorkerResponse, SaysWhatIsWrongWithAWorkersAnswer) {
  const std::vector<BadAnswer> bad = {
      {"empty", [](auto& a) { a.Clear(); }, "output 'hidden' is missing"},
      {"an output is missing",
       [](auto& a) {
         a.mutable_outputs()->RemoveLast();
         a.mutable_raw_output_contents()->RemoveLast();
       },
       "output 'label' is missing"},
      {"no raw contents", [](auto& a) { a.clear_raw_output_contents(); }, "0 raw contents for 3 outputs"},
      {"too many raw contents", [](auto& a) { a.add_raw_output_contents("x"); }, "4 raw contents for 3 outputs"},
      {"another datatype", [](auto& a) { a.mutable_outputs(1)->set_datatype("FP16"); },
       "output 'pooled' has datatype FP16, not FP32"},
      {"two rows", [](auto& a) { a.mutable_outputs(1)->set_shape(0, 2); },
       "output 'pooled' has a shape other than [1, ...]"},
      {"no shape", [](auto& a) { a.mutable_outputs(1)->clear_shape(); },
       "output 'pooled' has a shape other than [1, ...]"},
      {"other tokens", [](auto& a) { a.mutable_outputs(0)->set_shape(1, 7); },
       "output 'hidden' has a shape other than [1, 8, ...]"},
      {"no tokens", [](auto& a) { a.mutable_outputs(0)->mutable_shape()->Truncate(1); },
       "output 'hidden' has a shape other than [1, 8, ...]"},
      {"a byte too few", [](auto& a) { a.mutable_raw_output_contents(0)->pop_back(); },
       "output 'hidden' carries 63 bytes; its shape needs 64"},
      {"a byte too many", [](auto& a) { a.mutable_raw_output_contents(1)->push_back('x'); },
       "output 'pooled' carries 13 bytes; its shape needs 12"},
      {"another number of labels",
       [](auto& a) {
         a.mutable_outputs(1)->set_shape(1, 2);
         a.mutable_raw_output_contents(1)->resize(8);
       },
       "output 'pooled' has [2] for each row, not [3]"},
      {"a dimension too many", [](auto& a) { a.mutable_outputs(0)->add_shape(1); },
       "output 'hidden' has [2, 1] for each token, not [2]"},
      {"a negative dimension", [](auto& a) { a.mutable_outputs(1)->set_shape(1, -3); },
       "output 'pooled' has impossible dimensions"},
      {"a negative dimension of BYTES", [](auto& a) { a.mutable_outputs(2)->set_shape(1, -1); },
       "output 'label' has impossible dimensions"},
      {"dimensions that overflow to what was sent",
       [](auto& a) {
         auto* shape = a.mutable_outputs(1)->mutable_shape();  // 4 * 3 * (2^62 + 1) = 12 modulo 2^64
         shape->Set(1, 3);
         shape->Add((std::int64_t{1} << 62) + 1);
       },
       "output 'pooled' has impossible dimensions"},
      {"BYTES of two elements for one", [](auto& a) { a.mutable_raw_output_contents(2)->append(4, '\0'); },
       "output 'label' carries 2 elements; its shape needs 1"},
      {"BYTES cut in the data", [](auto& a) { a.mutable_raw_output_contents(2)->pop_back(); },
       "output 'label' carries elements that are cut short; its shape needs 1"},
      {"BYTES cut in the length", [](auto& a) { a.mutable_raw_output_contents(2)->resize(3); },
       "output 'label' carries elements that are cut short; its shape needs 1"},
      {"BYTES without an element", [](auto& a) { a.mutable_raw_output_contents(2)->clear(); },
       "output 'label' carries 0 elements; its shape needs 1"},
  };
  const auto model = fixture::model(0);
  const Bound bound(request_of(*model, {2}), *model);
  for (const auto& c : bad) {
    auto answer = answer_of(8, 'A');
    c.damage(answer);
    const std::string body = answer.SerializeAsString();
    const auto fault = WorkerResponse().parse(body, *model, kAllOutputs, 1, 8);
    ASSERT_TRUE(fault.has_value()) << c.name;
    EXPECT_EQ(fault->message, "the worker's answer is unusable: " + c.message) << c.name;
    EXPECT_EQ(fault->code, Code::kInternal) << c.name;
  }

  struct BadBytes {
    std::string body, message;
  };
  const std::vector<BadBytes> bytes = {{"\x0a", "it does not parse"},
                                       {"\x2a\x02\x0a\x07", "an output does not parse"},
                                       {"\x2a\x03\x1a\x01\x80", "a shape does not parse"}};
  for (const auto& c : bytes) {
    const auto fault = WorkerResponse().parse(c.body, *model, kAllOutputs, 1, 8);
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->message, "the worker's answer is unusable: " + c.message);
  }
}

TEST(ResponsePlan, RefusesRowsThatDoNotGoTogether) {
  const auto model = fixture::model(2);
  const Bound bound(request_of(*model, {2, 2}), *model);
  fixture::Random random(5);
  const std::vector<std::string> bodies = {fixture::random_answer(random, *model, 2, 3).SerializeAsString(),
                                           fixture::random_answer(random, *model, 2, 4).SerializeAsString()};
  const Merged merged = merge(*model, bound.request, bodies, {2, 2});
  ASSERT_TRUE(merged.fault.has_value());
  EXPECT_EQ(merged.fault->code, Code::kInternal);
  EXPECT_EQ(merged.fault->message,
            "the worker's answer is unusable: output 'score' has other dimensions for other rows");
}

}  // namespace
}  // namespace arlo::gateway
