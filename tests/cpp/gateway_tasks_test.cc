// Tasks that share a model: by the parameter, by names, by numbers; and what is no task.
#include <gtest/gtest.h>

#include <google/protobuf/text_format.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gateway_fixture.h"
#include "rewrite/request.h"

namespace arlo::gateway {
namespace {

using inference::ModelInferRequest;

const char* const kIdsInput = R"(inputs { name: "ids" datatype: "INT64" role: ROLE_IDS pad_value: 5 })";
const char* const kPicture = R"(inputs { name: "ids" datatype: "INT64" role: ROLE_TENSOR dims: 3 })";
const char* const kTaskInput = R"(inputs { name: "task" datatype: "INT64" role: ROLE_TENSOR dims: 1 })";
const char* const kTopicAndTone =
    R"(tasks { name: "topic" labels: "a" labels: "b" } tasks { name: "tone" labels: "x" })";

v1::Deployment shared(const std::string& inputs, const std::string& tasks = kTopicAndTone) {
  const std::string text = "version: 1 model { name: \"m\" slo_ms: 100 default_timeout_ms: 2000 " + inputs + tasks +
                           R"(outputs { name: "logits" datatype: "FP32" dims: 2 } }
                             runtimes { name: "m_5" max_length: 5 max_batch: 8 capacity: 1
                                        latency { length: 5 batch: 1 latency_us: 10 } })";
  v1::Deployment deployment;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &deployment)) << text;
  return deployment;
}

std::string said(const MaybeFault& fault) { return fault ? fault->message : ""; }

// Two rows of three ids.
ModelInferRequest two_tasks() {
  ModelInferRequest request;
  request.set_model_name("m");
  auto* input = request.add_inputs();
  input->set_name("ids");
  input->set_datatype("INT64");
  input->add_shape(2);
  input->add_shape(3);
  request.add_raw_input_contents(fixture::raw64({1, 2, 3, 4, 5, 6}));
  return request;
}

ModelInferRequest with_task(const std::string& name) {
  auto request = two_tasks();
  (*request.mutable_parameters())["task"].set_string_param(name);
  return request;
}

ModelInferRequest with_input(const char* datatype, const std::string& raw, std::int64_t rows = 2) {
  auto request = two_tasks();
  auto* input = request.add_inputs();
  input->set_name("task");
  input->set_datatype(datatype);
  input->add_shape(rows);
  input->add_shape(1);
  request.add_raw_input_contents(raw);
  return request;
}

std::string names(const std::vector<std::string>& all) {
  std::string raw;
  for (const auto& name : all) {
    const auto size = static_cast<std::uint32_t>(name.size());
    raw.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(name);
  }
  return raw;
}

struct Asked {
  Asked(const ModelInferRequest& message, const v1::Deployment& deployment)
      : model(make_model(deployment, deployment.model(), 0)), body(message.SerializeAsString()) {
    EXPECT_EQ(said(check_deployment(deployment)), "");
    fault = said(request.parse(body));
    if (fault.empty()) fault = said(request.bind(*model, {}));
  }
  [[nodiscard]] ModelInferRequest sent(std::size_t row) const {
    const WorkerRequest::Row one{&request, row, 1};
    const RuntimeInfo runtime{"m_5", 5, 8, false};
    const WorkerRequest worker({&one, 1}, runtime, model->of_tensors() ? 1 : 5);
    std::string out(worker.size(), '\0');
    worker.write(out.data());
    ModelInferRequest message;
    EXPECT_TRUE(message.ParseFromString(out));
    return message;
  }
  std::shared_ptr<const ModelSpec> model;
  std::string body;
  InferRequest request;
  std::string fault;
};

using Tasks = std::vector<std::uint32_t>;

TEST(Tasks, AreNamedForAllRowsOrForEach) {
  for (const char* rows : {kIdsInput, kPicture}) {
    const auto deployment = shared(std::string(rows) + kTaskInput);
    const std::vector<std::pair<ModelInferRequest, Tasks>> good = {
        {with_task("topic"), {0, 0}},
        {with_task("tone"), {1, 1}},
        {with_input("BYTES", names({"tone", "topic"})), {1, 0}},
        {with_input("INT64", fixture::raw64({0, 1})), {0, 1}},
    };
    for (const auto& [message, wanted] : good) {
      const Asked asked(message, deployment);
      ASSERT_EQ(asked.fault, "");
      EXPECT_EQ(asked.request.tasks(), wanted);
      for (std::size_t row = 0; row < 2; ++row) {
        const auto sent = asked.sent(row);
        EXPECT_EQ(sent.inputs(1).name(), "task");
        EXPECT_EQ(sent.raw_input_contents(1), fixture::raw64({wanted[row]}));
        EXPECT_TRUE(sent.parameters().empty());
      }
    }
  }
}

TEST(Tasks, ShareBatches) {
  const auto deployment = shared(std::string(kIdsInput) + kTaskInput);
  const auto model = make_model(deployment, deployment.model(), 0);
  std::vector<std::string> bodies;
  for (const char* name : {"topic", "tone"}) bodies.push_back(with_task(name).SerializeAsString());
  InferRequest one;
  InferRequest other;
  for (auto* request : {&one, &other}) {
    ASSERT_EQ(said(request->parse(bodies[request == &one ? 0 : 1])), "");
    ASSERT_EQ(said(request->bind(*model, {})), "");
  }
  EXPECT_TRUE(one.goes_with(other));
}

TEST(Tasks, OfAModelWithoutAnyAreAParameterLikeOthers) {
  const Asked asked(with_task("topic"), shared(kIdsInput, ""));
  ASSERT_EQ(asked.fault, "");
  EXPECT_TRUE(asked.request.tasks().empty());
  EXPECT_EQ(asked.sent(0).parameters().at("task").string_param(), "topic");
}

TEST(Tasks, UnknownOrMissingAreRefusedWithTheList) {
  auto number = two_tasks();
  (*number.mutable_parameters())["task"].set_int64_param(1);
  auto both = with_input("INT64", fixture::raw64({0, 1}));
  (*both.mutable_parameters())["task"].set_string_param("tone");
  auto twice = with_input("BYTES", names({"tone", "topic"}));
  *twice.add_inputs() = twice.inputs(1);
  twice.add_raw_input_contents(names({"tone", "topic"}));
  const std::vector<std::pair<ModelInferRequest, std::string>> bad = {
      {two_tasks(), "model 'm' needs the parameter task, or an input 'task': one of topic, tone"},
      {with_task("mood"), "unknown task 'mood' of model 'm'; it has topic, tone"},
      {number, "parameter task must be a string_param: one of topic, tone"},
      {with_input("BYTES", names({"tone", "mood"})), "unknown task 'mood' of model 'm'; it has topic, tone"},
      {with_input("INT64", fixture::raw64({0, 2})),
       "row 1: input 'task' has 2; model 'm' has the tasks 0 to 1, topic, tone"},
      {with_input("INT64", fixture::raw64({-1, 0})),
       "row 0: input 'task' has -1; model 'm' has the tasks 0 to 1, topic, tone"},
      {both, "task is given twice, by the parameter and by the input: leave one out"},
      {twice, "input 'task' is given twice"},
      {with_input("BYTES", names({"tone"})), "input 'task' carries 1 texts; its shape needs 2"},
      {with_input("BYTES", names({"tone"}), 1), "input 'task' has 1 rows; 2 are needed, as of the others"},
  };
  for (const char* rows : {kIdsInput, kPicture}) {
    for (const auto& [message, wanted] : bad) {
      EXPECT_EQ(Asked(message, shared(std::string(rows) + kTaskInput)).fault, wanted);
    }
  }
}

TEST(Tasks, OfADeploymentHaveTheirInput) {
  EXPECT_EQ(said(check_deployment(shared(kIdsInput))),
            "model.tasks: model 'm' has no input 'task' of ROLE_TENSOR, INT64, dims 1");
  EXPECT_EQ(
      said(check_deployment(shared(std::string(kIdsInput) + kTaskInput, R"(tasks { name: "a" } tasks { name: "a" })"))),
      "model.tasks: name 'a' is empty or given twice");
}

}  // namespace
}  // namespace arlo::gateway
