// The plugin's code in a server that speaks Triton's C API (plugin_triton.h): what a client is promised, under faults,
// reloads, cancellations and the end of the server. Run under the sanitizers too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <random>
#include <thread>

#include "plugin_fixture.h"

namespace arlo::triton {
namespace {

TEST_F(PluginHost, RowsOfAnyLengthAreAnswered) {
  LoadBoth();
  Start();
  for (const bool pieces : {false, true}) {
    auto request = Request({Ids(3), Ids(64), Ids(16), Ids(17)}, pieces);
    Send(*request);
    Await(*request);
    EXPECT_EQ(request->error, "");
    ExpectAnswer(*request);
    EXPECT_EQ(request->parameters.at("level"), 1);
    EXPECT_EQ(request->parameters.count("batch_rows"), 1U);
  }
  auto exact = Request({Ids(16), Ids(16, 100)});  // read by the engine where it lies
  Send(*exact);
  Await(*exact);
  ExpectAnswer(*exact);
}

TEST_F(PluginHost, WhatIsWrongIsSaid) {
  LoadBoth();
  Start();
  auto long_one = Request({Ids(65)});
  auto unknown_id = Request({{1'000'000}});
  auto uneven = Request({Ids(4)});
  uneven->inputs[1].shape[1] = 3;
  uneven->inputs[1].buffers[0].resize(24);
  auto many = Request(std::vector<std::vector<std::int64_t>>(9, Ids(2)));
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
  for (int i = 0; i < 16; ++i) requests.push_back(Request({i == 5 ? std::vector<std::int64_t>{666} : Ids(8)}));
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
    auto request = Request({Ids(4)});
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
  auto waits = Request({Ids(40)});
  Send(*waits);
  auto runs = Request({Ids(4)});
  Send(*runs);
  Await(*runs);
  EXPECT_EQ(waits->answers, 0);
  server_.Load("m_len64", {});
  Await(*waits);
  ExpectAnswer(*waits);
  server_.Unload("m_len16");
  auto longer = Request({Ids(4)});
  Send(*longer);
  Await(*longer);
  ExpectAnswer(*longer);
}

TEST_F(PluginHost, ALengthWithoutEngineIsRefusedAfterTheGrace) {
  server_.Load("m_len16", {});
  Start(Parameter("unavailable_grace_ms", "30"));
  auto request = Request({Ids(40)});
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
  auto first = Request({Ids(4)});
  Send(*first);
  auto gone = Request({Ids(4)});
  auto late = Request({Ids(40)});
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

// A client's rows end together: what runs is told so, what waits never starts.
TEST_F(PluginHost, ACancelledRequestOfManyRowsEndsWhole) {
  LoadBoth();
  Start(Parameter("slo_ms", "5000") + "," + Parameter("inflight_limit", "1") + "," + Parameter("batching", "one"));
  AwaitEngines();
  const auto before = server_.rows();
  for (const char* const model : {"m_len16", "m_len64"}) server_.Set(model, {.sleep_us = 50'000});
  auto batch = Request({Ids(4), Ids(40), Ids(5), Ids(50)});
  Send(*batch);
  while (server_.rows() == before) std::this_thread::yield();
  batch->cancelled = true;
  Await(*batch);
  EXPECT_NE(batch->error.find("cancelled"), std::string::npos);
  EXPECT_LE(server_.rows() - before, 2U);  // not those that waited
  auto next = Request({Ids(6)});
  Send(*next);
  Await(*next);
  ExpectAnswer(*next);
}

// Rows of BYTES are of any size, and each comes back to the request that it is of.
TEST_F(PluginHost, TextsAreAnswered) {
  LoadBoth({.sleep_us = 1000});
  Start(Parameter("slo_ms", "5000"));
  const auto element = [](const std::string& text) {
    const auto size = static_cast<std::uint32_t>(text.size());
    return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
  };
  Requests requests;
  std::vector<std::string> wanted;
  for (std::size_t i = 1; i <= 16; ++i) {
    requests.push_back(Request({Ids(i), Ids(4 * i), Ids(1, 5)}));
    requests.back()->outputs = {"label", "embedding"};
    wanted.emplace_back();
    for (const std::size_t tokens : {i, 4 * i}) {
      wanted.back() += element(std::to_string(tokens * (tokens + 1) / 2)) + element(std::string(tokens, '*'));
    }
    wanted.back() += element("5") + element("*");
  }
  for (auto& request : requests) Send(*request);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Await(*requests[i]);
    ASSERT_EQ(requests[i]->error, "");
    const auto& label = requests[i]->answer.at("label");
    EXPECT_EQ(label.shape, (std::vector<std::int64_t>{3, 2}));
    EXPECT_EQ(label.bytes, wanted[i]);
  }
  LoadBoth({.cut_labels = true});
  auto cut = Request({Ids(40)});
  cut->outputs = {"label"};
  Send(*cut);
  Await(*cut);
  EXPECT_NE(cut->error.find("another size than its shape"), std::string::npos) << cut->error;
}

// Where the configuration keeps priorities, those behind the default are bulk: it makes room for the others.
TEST_F(PluginHost, PrioritiesAreClasses) {
  server_.Load("m_len16", {});
  Start(Parameter("max_queued", "2") + "," + Parameter("unavailable_grace_ms", "600000") + "," +
            Parameter("timeout_ms", "600000"),
        R"("dynamic_batching":{"priority_levels":"3","default_priority_level":2},)");
  Requests waiting;
  for (const std::uint64_t priority : {3, 2}) {
    waiting.push_back(Request({Ids(40)}));  // no engine is long enough
    waiting.back()->priority = priority;
    Send(*waiting.back());
  }
  auto urgent = Request({Ids(40)});
  urgent->priority = 1;
  Send(*urgent);
  Await(*waiting[0]);
  EXPECT_NE(waiting[0]->error, "");
  EXPECT_EQ(waiting[1]->answers, 0);
  auto more = Request({Ids(40)});
  more->priority = 1;
  Send(*more);
  Await(*more);
  EXPECT_NE(more->error.find("the queue is full"), std::string::npos) << more->error;
  server_.Load("m_len64", {});
  for (auto* request : {waiting[1].get(), urgent.get()}) {
    Await(*request);
    ExpectAnswer(*request);
  }
}

TEST_F(PluginHost, BatchesAndWaitsAreCounted) {
  LoadBoth({.sleep_us = 1000});
  const auto of = [](const char* family, const char* engine) {
    return std::string("arlo_plugin_") + family + " model=m engine=" + engine;
  };
  const auto all = [&](const char* family, const std::string& what) {
    return test::Counted(of(family, "m_len16") + what) + test::Counted(of(family, "m_len64") + what);
  };
  const double rows = all("rows_total", "");
  const double batches = all("batches_total", "");
  const double batch_rows = all("batch_rows", " sum");
  const double batch_count = all("batch_rows", " count");
  const double waits = all("row_wait_seconds", " count");
  const double waited = all("row_wait_seconds", " sum") - all("wait_seconds_total", "");
  Start(Parameter("slo_ms", "5000"));
  Requests requests;
  for (int i = 0; i < 40; ++i) requests.push_back(Request({Ids(4), Ids(40)}));
  for (auto& request : requests) Send(*request);
  for (auto& request : requests) Await(*request);
  while (all("rows_total", "") < rows + 80) std::this_thread::yield();  // published from time to time
  while (all("row_wait_seconds", " count") < waits + 80) std::this_thread::yield();
  host_.reset();
  EXPECT_EQ(all("rows_total", ""), rows + 80);
  EXPECT_EQ(all("batch_rows", " sum"), batch_rows + 80);
  EXPECT_EQ(all("batch_rows", " count") - batch_count, all("batches_total", "") - batches);
  EXPECT_LT(all("batches_total", "") - batches, 80);
  EXPECT_EQ(all("row_wait_seconds", " count"), waits + 80);
  EXPECT_NEAR(all("row_wait_seconds", " sum") - all("wait_seconds_total", ""), waited, 80 * 1e-6);
}

TEST_F(PluginHost, AStoppingServerAnswersWhatWaits) {
  LoadBoth({.sleep_us = 20'000});
  Start(Parameter("slo_ms", "5000"));
  AwaitEngines();
  Requests requests;
  for (int i = 0; i < 20; ++i) requests.push_back(Request({Ids(i % 2 == 0 ? 4 : 40)}));
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
    auto request = Request({Ids(4), Ids(40), Ids(3)});
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
      for (auto& row : rows) row = Ids(random() % 4 == 0 ? 17 + random() % 48 : 1 + random() % 16, random() % 800);
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
  EXPECT_EQ(made.usual_priority, 0U);
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
  EXPECT_THROW(LogicalConfig::FromJson(Config("", R"("response_cache":{"enable":true},)"), Manifest()),
               std::invalid_argument);
  EXPECT_THROW(LogicalConfig::FromJson("{", Manifest()), std::invalid_argument);
}

}  // namespace
}  // namespace arlo::triton
