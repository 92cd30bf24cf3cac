// Requests and engines that break the rules: each request is answered once, and nothing is read that is not there.
#include <random>
#include <thread>

#include "plugin_fixture.h"

namespace arlo::triton {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 61;

class PluginHostile : public PluginHost {
 protected:
  std::string Said(TRITONBACKEND_Request& request) {
    Send(request);
    Await(request);
    return request.error;
  }
};

// Shapes, bytes and types that do not fit together, in all combinations.
TEST_F(PluginHostile, NoShapeIsTrusted) {
  LoadBoth();
  Start();
  const std::vector<std::vector<std::int64_t>> shapes = {{},
                                                         {4},
                                                         {0, 4},
                                                         {1, 0},
                                                         {-1, 4},
                                                         {1, -1},
                                                         {1, 4, 1},
                                                         {kHuge, kHuge},
                                                         {1, kHuge},
                                                         {kHuge, 1},
                                                         {1, kHuge / 8 + 1},
                                                         {100'000, 1},
                                                         {8, 1LL << 40},
                                                         {1, 5},
                                                         {2, 4},
                                                         {std::numeric_limits<std::int64_t>::min(), 1}};
  int refused = 0;
  for (const auto& shape : shapes) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, std::size_t{32}, std::size_t{40}}) {
      for (const auto type : {TRITONSERVER_TYPE_INT64, TRITONSERVER_TYPE_INT32, TRITONSERVER_TYPE_BYTES}) {
        for (const int pieces : {1, 3}) {
          auto request = Request({Ids(4)});
          for (auto& input : request->inputs) {
            input.shape = shape;
            input.datatype = type;
            input.buffers.assign(1, std::string(bytes, '\1'));
            for (int i = 1; i < pieces; ++i) input.buffers.emplace_back();
          }
          EXPECT_NE(Said(*request), "");
          ++refused;
        }
      }
    }
  }
  EXPECT_EQ(refused, 16 * 4 * 3 * 2);
  EXPECT_EQ(server_.executions(), 0U);
  auto good = Request({Ids(4)});
  EXPECT_EQ(Said(*good), "");
}

TEST_F(PluginHostile, InputsAreAsManyAsThereAre) {
  LoadBoth();
  Start();
  auto without_mask = Request({Ids(4)});
  without_mask->inputs.pop_back();
  EXPECT_EQ(Said(*without_mask), "");
  auto without_ids = Request({Ids(4)});
  without_ids->inputs.erase(without_ids->inputs.begin());
  EXPECT_NE(Said(*without_ids).find("'input_ids' is missing"), std::string::npos);
  auto none = Request({Ids(4)});
  none->inputs.clear();
  EXPECT_NE(Said(*none), "");
  auto unknown = Request({Ids(4)});
  unknown->inputs[1].name = "pixels";
  EXPECT_NE(Said(*unknown).find("unknown input"), std::string::npos);
  auto no_such_output = Request({Ids(4)});
  no_such_output->outputs = {"labels"};
  EXPECT_NE(Said(*no_such_output).find("unknown output"), std::string::npos);
}

TEST_F(PluginHostile, TooManyRowsCostNothing) {
  LoadBoth();
  Start();
  auto many = Request(std::vector<std::vector<std::int64_t>>(100'000, Ids(2)));
  EXPECT_NE(Said(*many).find("max_batch_size of the logical model is 8"), std::string::npos) << many->error;
}

// An encoder has one answer. An engine that sends it apart from the word that it was all, as a decoupled one may, is
// served; one that sends none, or several, has failed.
TEST_F(PluginHostile, EnginesMaySayInPiecesThatTheyAreThrough) {
  Start();
  for (const auto& [answers, words] : {std::pair{2, "more than one"}, std::pair{0, "said nothing"}}) {
    LoadBoth({.answers = answers});
    auto request = Request({Ids(4)});
    EXPECT_NE(Said(*request).find(words), std::string::npos) << request->error;
  }
}

TEST_F(PluginHostile, DecoupledEnginesAreServed) {
  LoadBoth({.answers = -1});
  Start();
  for (int i = 0; i < 20; ++i) {
    auto request = Request({Ids(4), Ids(40)});
    EXPECT_EQ(Said(*request), "");
    ExpectAnswer(*request);
  }
}

// Engines go and come while many threads send, cancel and time out; then the server stops under the load.
TEST_F(PluginHostile, UnloadedAndStoppedUnderLoad) {
  LoadBoth({.sleep_us = 50});
  Start(Parameter("slo_ms", "50") + "," + Parameter("timeout_ms", "500") + "," +
        Parameter("unavailable_grace_ms", "20"));
  std::atomic<int> answered{0};
  std::atomic<bool> over{false};
  const auto client = [&](unsigned seed) {
    std::mt19937 random(seed);
    Requests open;
    for (int i = 0; i < 300; ++i) {
      open.push_back(Request({Ids(1 + random() % 64), Ids(1 + random() % 16)}));
      Send(*open.back());
      if (random() % 4 == 0) open[random() % open.size()]->cancelled = true;
    }
    for (auto& request : open) {
      Await(*request);
      if (request->error.empty()) ExpectAnswer(*request);
      ++answered;
    }
  };
  std::thread unloader([&] {
    for (int i = 0; !over; ++i) {
      server_.Unload(i % 2 == 0 ? "m_len16" : "m_len64");
      std::this_thread::yield();
      LoadBoth({.sleep_us = 50});
    }
    server_.Stop();
  });
  std::vector<std::thread> clients;
  for (unsigned seed = 1; seed <= 4; ++seed) clients.emplace_back(client, seed);
  while (answered == 0) std::this_thread::yield();
  over = true;
  for (auto& each : clients) each.join();
  unloader.join();
  EXPECT_EQ(answered, 4 * 300);
}

}  // namespace
}  // namespace arlo::triton
