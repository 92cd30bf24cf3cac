// A host in a server that speaks Triton's C API, requests to it, and what a good answer is.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugin_triton.h"
#include "plugins/scheduler/config.h"
#include "plugins/scheduler/execution.h"
#include "plugins/scheduler/host.h"
#include "plugins/scheduler/memory.h"
#include "plugins/scheduler/metrics.h"

namespace arlo::triton {

using Requests = std::vector<std::unique_ptr<TRITONBACKEND_Request>>;

inline std::string Runtime(int length, int batch, int us) {
  return R"({"name":"m_len)" + std::to_string(length) + R"(","max_length":)" + std::to_string(length) +
         R"(,"max_batch":)" + std::to_string(batch) + R"(,"dynamic":false,"latency":[{"length":)" +
         std::to_string(length) + R"(,"batch":1,"latency_us":)" + std::to_string(us) + R"(},{"length":)" +
         std::to_string(length) + R"(,"batch":)" + std::to_string(batch) + R"(,"latency_us":)" +
         std::to_string(2 * us) + "}]}";
}

inline std::string Manifest() {
  return R"({"inputs":[{"name":"input_ids","datatype":"INT64","role":"ids","vocabulary":1000000},
    {"name":"attention_mask","datatype":"INT64","role":"mask"}],
    "outputs":[{"name":"hidden","datatype":"FP32","token_level":true,"dims":[1]},
    {"name":"embedding","datatype":"FP32","token_level":false,"dims":[1]},
    {"name":"label","datatype":"BYTES","token_level":false,"dims":[2],"on_request":true}],"runtimes":[)" +
         Runtime(64, 8, 20) + "," + Runtime(16, 8, 10) + "]}";
}

inline std::string Config(const std::string& parameters = "", const std::string& more = "") {
  return "{" + more + R"("name":"m","max_batch_size":8,"input":[{"name":"input_ids"},{"name":"attention_mask"}],
    "output":[{"name":"hidden"},{"name":"embedding"}],"parameters":{)" +
         parameters + "}}";
}

inline std::string Parameter(const std::string& name, const std::string& value) {
  return "\"" + name + R"(":{"string_value":")" + value + "\"}";
}

inline std::unique_ptr<TRITONBACKEND_Request> Request(const std::vector<std::vector<std::int64_t>>& rows,
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

inline std::vector<std::int64_t> Ids(std::size_t length, std::int64_t first = 1) {
  std::vector<std::int64_t> row(length);
  for (std::size_t i = 0; i < length; ++i) row[i] = first + static_cast<std::int64_t>(i);
  return row;
}

inline void ExpectAnswer(const TRITONBACKEND_Request& request) {
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

inline void Await(const TRITONBACKEND_Request& request) {
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

  void Start(const std::string& parameters = "", const std::string& more = "") {
    host_ = std::make_unique<Host>(LogicalConfig::FromJson(Config(parameters, more), Manifest()), server_.handle(),
                                   *memory_, families_, allocator_);
  }
  void TearDown() override {
    host_.reset();
    EXPECT_EQ(test::Outstanding(), before_) << "something of the C API was not deleted";
    EXPECT_EQ(pinned_.kept, 0) << "pinned memory was not given back";
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
      auto request = Request({Ids(length)});
      Send(*request);
      Await(*request);
      ASSERT_EQ(request->error, "");
    }
  }

  std::int64_t before_ = 0;
  test::Server server_;
  TRITONBACKEND_MemoryManager pinned_;
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>(&pinned_, test::CopyByDevice);
  MetricFamilies families_;
  TRITONSERVER_ResponseAllocator* allocator_ = [] {
    TRITONSERVER_ResponseAllocator* made = nullptr;
    EXPECT_EQ(NewAllocator(&made), nullptr);
    return made;
  }();
  std::unique_ptr<Host> host_;
};

}  // namespace arlo::triton
