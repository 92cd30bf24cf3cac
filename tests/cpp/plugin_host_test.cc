// The plugin's code in a server that speaks Triton's C API (plugin_triton.h): what a client is promised, under faults,
// reloads, cancellations and the end of the server. Run under the sanitizers too.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "plugin_triton.h"
#include "plugins/scheduler/config.h"
#include "plugins/scheduler/execution.h"
#include "plugins/scheduler/host.h"
#include "plugins/scheduler/metrics.h"

namespace arlo::triton {
namespace {

using Requests = std::vector<std::unique_ptr<TRITONBACKEND_Request>>;

std::string Runtime(int length, int batch, int us) {
  return R"({"name":"m_len)" + std::to_string(length) + R"(","max_length":)" + std::to_string(length) +
         R"(,"max_batch":)" + std::to_string(batch) + R"(,"dynamic":false,"latency":[{"length":)" +
         std::to_string(length) + R"(,"batch":1,"latency_us":)" + std::to_string(us) + R"(},{"length":)" +
         std::to_string(length) + R"(,"batch":)" + std::to_string(batch) + R"(,"latency_us":)" +
         std::to_string(2 * us) + "}]}";
}

std::string Manifest() {
  return R"({"inputs":[{"name":"input_ids","datatype":"INT64","role":"ids","vocabulary":1000000},
    {"name":"attention_mask","datatype":"INT64","role":"mask"}],
    "outputs":[{"name":"hidden","datatype":"FP32","token_level":true,"dims":[1]},
    {"name":"embedding","datatype":"FP32","token_level":false,"dims":[1]}],"runtimes":[)" +
         Runtime(64, 8, 20) + "," + Runtime(16, 8, 10) + "]}";
}

std::string Config(const std::string& parameters = "") {
  return R"({"name":"m","max_batch_size":8,"input":[{"name":"input_ids"},{"name":"attention_mask"}],
    "output":[{"name":"hidden"},{"name":"embedding"}],"parameters":{)" +
         parameters + "}}";
}

std::string Parameter(const std::string& name, const std::string& value) {
  return "\"" + name + R"(":{"string_value":")" + value + "\"}";
}

std::unique_ptr<TRITONBACKEND_Request> Request(const std::vector<std::vector<std::int64_t>>& rows,
                                               bool pieces = false) {
  auto request = std::make_unique<TRITONBACKEND_Request>();
  std::size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.size());
  std::vector<std::int64_t> ids(rows.size() * width);
  std::vector<std::int64_t> mask(ids.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), ids.begin() + static_cast<std::ptrdiff_t>(r * width));
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(r * width), rows[r].size(), 1);
  }
  for (const auto& [name, values] : {std::pair{"input_ids", &ids}, std::pair{"attention_mask", &mask}}) {
    TRITONBACKEND_Input input{name, TRITONSERVER_TYPE_INT64, {}, {}};
    input.shape = {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(width)};
    const std::string bytes(reinterpret_cast<const char*>(values->data()), values->size() * 8);
    const std::size_t cut = pieces ? bytes.size() / 2 : bytes.size();
    input.buffers.push_back(bytes.substr(0, cut));
    if (cut < bytes.size()) input.buffers.push_back(bytes.substr(cut));
    request->inputs.push_back(std::move(input));
  }
  request->outputs = {"hidden", "embedding"};
  return request;
}

std::vector<std::int64_t> Row(std::size_t length, std::int64_t first = 1) {
  std::vector<std::int64_t> row(length);
  for (std::size_t i = 0; i < length; ++i) row[i] = first + static_cast<std::int64_t>(i);
  return row;
}

void ExpectAnswer(const TRITONBACKEND_Request& request) {
  const auto& ids = request.inputs[0];
  const auto rows = ids.shape[0];
  const auto width = ids.shape[1];
  std::string all[2];
  for (int i = 0; i < 2; ++i) {
    for (const auto& buffer : request.inputs[static_cast<std::size_t>(i)].buffers) all[i] += buffer;
  }
  std::vector<std::int64_t> id(static_cast<std::size_t>(rows * width));
  std::memcpy(id.data(), all[0].data(), all[0].size());
  const auto& hidden = request.answer.at("hidden");
  const auto& embedding = request.answer.at("embedding");
  ASSERT_EQ(embedding.shape, (std::vector<std::int64_t>{rows, 1}));
  ASSERT_EQ(hidden.shape, (std::vector<std::int64_t>{rows, width, 1}));
  std::vector<float> sums(static_cast<std::size_t>(rows));
  std::memcpy(sums.data(), embedding.bytes.data(), embedding.bytes.size());
  std::vector<float> each(id.size());
  std::memcpy(each.data(), hidden.bytes.data(), hidden.bytes.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t sum = 0;
    for (std::int64_t i = r * width; i < (r + 1) * width; ++i) {
      sum += id[static_cast<std::size_t>(i)];  // what the mask leaves out is 0
      EXPECT_EQ(each[static_cast<std::size_t>(i)], static_cast<float>(id[static_cast<std::size_t>(i)]));
    }
    EXPECT_EQ(sums[static_cast<std::size_t>(r)], static_cast<float>(sum));
  }
}

void Await(const TRITONBACKEND_Request& request) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (request.releases == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up) << "a request is not answered";
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  ASSERT_EQ(request.answers, 1);
}

class PluginHost : public ::testing::Test {
 protected:
  void SetUp() override { before_ = test::Outstanding(); }

  void Start(const std::string& parameters = "") {
    host_ = std::make_unique<Host>(LogicalConfig::FromJson(Config(parameters), Manifest()), server_.handle(), families_,
                                   allocator_);
  }
  void TearDown() override {
    host_.reset();
    EXPECT_EQ(test::Outstanding(), before_) << "something of the C API was not deleted";
    EXPECT_EQ(TRITONSERVER_ResponseAllocatorDelete(allocator_), nullptr);
  }
  void Send(TRITONBACKEND_Request& request) {
    TRITONBACKEND_Request* one = &request;
    host_->Receive(nullptr, &one, 1);
  }
  void LoadBoth(test::Behaviour behaviour = {}) {
    server_.Load("m_len16", behaviour);
    server_.Load("m_len64", behaviour);
  }

  // Until both engines are in service.
  void AwaitEngines() {
    for (const std::size_t length : {4, 40}) {
      auto request = Request({Row(length)});
      Send(*request);
      Await(*request);
      ASSERT_EQ(request->error, "");
    }
  }

  std::int64_t before_ = 0;
  test::Server server_;
  MetricFamilies families_;
  TRITONSERVER_ResponseAllocator* allocator_ = [] {
    TRITONSERVER_ResponseAllocator* made = nullptr;
    EXPECT_EQ(NewAllocator(&made), nullptr);
    return made;
  }();
  std::unique_ptr<Host> host_;
};

TEST_F(PluginHost, RowsOfAnyLengthAreAnswered) {
  LoadBoth();
  Start();
  for (const bool pieces : {false, true}) {
    auto request = Request({Row(3), Row(64), Row(16), Row(17)}, pieces);
    Send(*request);
    Await(*request);
    EXPECT_EQ(request->error, "");
    ExpectAnswer(*request);
    EXPECT_EQ(request->parameters.at("level"), 1);
    EXPECT_EQ(request->parameters.count("batch_rows"), 1U);
  }
  auto exact = Request({Row(16), Row(16, 100)});  // read by the engine where it lies
  Send(*exact);
  Await(*exact);
  ExpectAnswer(*exact);
}

TEST_F(PluginHost, WhatIsWrongIsSaid) {
  LoadBoth();
  Start();
  auto long_one = Request({Row(65)});
  auto unknown_id = Request({{1'000'000}});
  auto uneven = Request({Row(4)});
  uneven->inputs[1].shape[1] = 3;
  uneven->inputs[1].buffers[0].resize(24);
  auto many = Request(std::vector<std::vector<std::int64_t>>(9, Row(2)));
  for (const auto& [request, words] :
       {std::pair{long_one.get(), "takes 1 to 64 tokens"}, std::pair{unknown_id.get(), "has the token id"},
        std::pair{uneven.get(), "has shape"}, std::pair{many.get(), "too many rows"}}) {
    Send(*request);
    Await(*request);
    EXPECT_NE(request->error.find(words), std::string::npos) << request->error;
  }
}

TEST_F(PluginHost, ABadRowIsFoundAmongOthers) {
  LoadBoth({.sleep_us = 2000});
  server_.Set("m_len16", {.sleep_us = 500, .poison = 666});
  server_.Set("m_len64", {.sleep_us = 500, .poison = 666});
  Start(Parameter("slo_ms", "2000"));
  Requests requests;
  for (int i = 0; i < 16; ++i) requests.push_back(Request({i == 5 ? std::vector<std::int64_t>{666} : Row(8)}));
  for (auto& request : requests) Send(*request);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Await(*requests[i]);
    EXPECT_EQ(requests[i]->error.empty(), i != 5) << requests[i]->error;
    if (i != 5) ExpectAnswer(*requests[i]);
  }
}

TEST_F(PluginHost, ABrokenEngineIsPutAside) {
  LoadBoth();
  Start();
  AwaitEngines();
  server_.Set("m_len16", {.broken = true});
  const auto before = server_.executions();
  for (int i = 0; i < 8; ++i) {
    auto request = Request({Row(4)});
    Send(*request);
    Await(*request);
    EXPECT_EQ(request->error, "");
    EXPECT_EQ(request->parameters["demoted"], 1);
  }
  EXPECT_LE(server_.executions() - before, 8U + 2) << "the broken engine is asked once, not for each row";
}

TEST_F(PluginHost, EnginesComeAndGo) {
  server_.Load("m_len16", {});
  Start(Parameter("unavailable_grace_ms", "60000") + "," + Parameter("timeout_ms", "60000"));
  auto waits = Request({Row(40)});
  Send(*waits);
  auto runs = Request({Row(4)});
  Send(*runs);
  Await(*runs);
  EXPECT_EQ(waits->answers, 0);
  server_.Load("m_len64", {});
  Await(*waits);
  ExpectAnswer(*waits);
  server_.Unload("m_len16");
  auto longer = Request({Row(4)});
  Send(*longer);
  Await(*longer);
  ExpectAnswer(*longer);
}

TEST_F(PluginHost, ALengthWithoutEngineIsRefusedAfterTheGrace) {
  server_.Load("m_len16", {});
  Start(Parameter("unavailable_grace_ms", "30"));
  auto request = Request({Row(40)});
  Send(*request);
  Await(*request);
  EXPECT_NE(request->error.find("m_len64 is not loaded"), std::string::npos) << request->error;
}

TEST_F(PluginHost, NothingStartsThatNobodyWaitsFor) {
  LoadBoth();
  Start(Parameter("slo_ms", "5000") + "," + Parameter("inflight_limit", "1"));
  AwaitEngines();
  const auto before = server_.rows();
  server_.Set("m_len16", {.sleep_us = 30'000});
  auto first = Request({Row(4)});
  Send(*first);
  auto gone = Request({Row(4)});
  auto late = Request({Row(40)});
  late->timeout_us = 5'000;
  Send(*gone);
  Send(*late);
  gone->cancelled = true;
  Await(*gone);
  Await(*late);
  Await(*first);
  EXPECT_NE(gone->error.find("cancelled"), std::string::npos);
  EXPECT_FALSE(late->error.empty());
  EXPECT_EQ(server_.rows() - before, 1U);
}

TEST_F(PluginHost, AStoppingServerAnswersWhatWaits) {
  LoadBoth({.sleep_us = 20'000});
  Start(Parameter("slo_ms", "5000"));
  AwaitEngines();
  Requests requests;
  for (int i = 0; i < 20; ++i) requests.push_back(Request({Row(i % 2 == 0 ? 4 : 40)}));
  for (auto& request : requests) Send(*request);
  server_.Stop();
  int good = 0;
  for (auto& request : requests) {
    Await(*request);
    good += request->error.empty() ? 1 : 0;
    EXPECT_TRUE(request->error.empty() || request->error.find("stopping") != std::string::npos) << request->error;
  }
  EXPECT_GE(good, 1);
}

TEST_F(PluginHost, InlineAnswersDoNotRecurse) {
  LoadBoth({.inline_answers = true});
  Start(Parameter("batching", "one") + "," + Parameter("slo_ms", "5000"));
  for (int i = 0; i < 2000; ++i) {
    auto request = Request({Row(4), Row(40), Row(3)});
    Send(*request);
    Await(*request);
    ExpectAnswer(*request);
  }
}

// Everything at once: each request is answered once, and right where it is answered well.
TEST_F(PluginHost, AnyMixture) {
  LoadBoth({.sleep_us = 20, .fail_one_in = 50});
  Start(Parameter("slo_ms", "50") + "," + Parameter("timeout_ms", "300") + "," + Parameter("inflight_limit", "2") +
        "," + Parameter("unavailable_grace_ms", "100"));
  const char* const wanted = std::getenv("ARLO_PLUGIN_REQUESTS");
  const int total = wanted == nullptr ? 4000 : static_cast<int>(std::strtol(wanted, nullptr, 10));
  std::atomic<bool> over{false};
  std::thread trouble([&] {
    std::mt19937 random(7);
    for (int i = 0; !over; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      const std::string model = random() % 2 == 0 ? "m_len16" : "m_len64";
      switch (random() % 4) {
        case 0:
          server_.Unload(model);
          break;
        case 1:
          server_.Set(model, {.broken = true});
          break;
        default:
          server_.Load(model, {.sleep_us = 20, .fail_one_in = 50, .poison = 777});
      }
    }
    LoadBoth();
  });
  std::atomic<int> good{0};
  std::atomic<int> bad{0};
  const auto client = [&](unsigned seed, int count) {
    std::mt19937 random(seed);
    std::deque<std::unique_ptr<TRITONBACKEND_Request>> open;
    const auto take = [&] {
      Await(*open.front());
      if (open.front()->error.empty()) ExpectAnswer(*open.front());
      ++(open.front()->error.empty() ? good : bad);
      open.pop_front();
    };
    for (int i = 0; i < count; ++i) {
      std::vector<std::vector<std::int64_t>> rows(1 + random() % 3);
      for (auto& row : rows) row = Row(random() % 4 == 0 ? 17 + random() % 48 : 1 + random() % 16, random() % 800);
      open.push_back(Request(rows, random() % 8 == 0));
      if (random() % 10 == 0) open.back()->timeout_us = 1 + random() % 20'000;
      open.back()->bulk = random() % 10 == 0;
      Send(*open.back());
      if (random() % 10 == 0) open[random() % open.size()]->cancelled = true;
      if (open.size() > 30) take();
    }
    while (!open.empty()) take();
  };
  std::thread other(client, 1U, total / 2);
  client(2U, total / 2);
  other.join();
  over = true;
  trouble.join();
  EXPECT_EQ(good + bad, total / 2 * 2);
  EXPECT_GT(good, total / 4);
}

TEST(PluginConfig, IsChecked) {
  const auto made = LogicalConfig::FromJson(Config(Parameter("slo_ms", "20")), Manifest());
  EXPECT_EQ(made.model.longest, 64);
  EXPECT_EQ(made.engines[0].info.name, "m_len16");
  EXPECT_EQ(made.Ideal(16), 0U);
  EXPECT_EQ(made.Ideal(17), 1U);
  EXPECT_EQ(made.model.default_timeout_ns, 1'000'000'000);
  EXPECT_EQ(made.engines[1].cost.capacity, 20'000 / 40 * 8);
  for (const auto& [parameters, words] :
       {std::pair{Parameter("slo", "20"), "unknown parameter slo"},
        std::pair{Parameter("slo_ms", "many"), "not a whole number"}, std::pair{Parameter("policy", "best"), "best"},
        std::pair{Parameter("engines", "m_len32"), "no runtime 'm_len32'"}}) {
    try {
      LogicalConfig::FromJson(Config(parameters), Manifest());
      ADD_FAILURE() << parameters;
    } catch (const std::invalid_argument& problem) {
      EXPECT_NE(std::string(problem.what()).find(words), std::string::npos) << problem.what();
    }
  }
  EXPECT_THROW(LogicalConfig::FromJson("{", Manifest()), std::invalid_argument);
}

}  // namespace
}  // namespace arlo::triton
