// One thread of the data path: its loop, and its connections to workers.
//
// A request is received, dispatched, sent on, answered and finished on one lane, without changing threads. What begins
// elsewhere, as when a row is retried or a drain ends, is handed to the lane of the request.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "transport/aside.h"
#include "transport/channel.h"
#include "transport/loop.h"

namespace arlo::gateway {

class Lane final : private transport::Loop::Timer {
 public:
  Lane();
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void start();  // its thread
  void stop();   // and its end; connections to workers are closed
  [[nodiscard]] transport::Loop& loop() { return loop_; }
  // For work that would keep its thread too long. What takes as long as a tokenizer does for `bytes` above kHuge runs
  // on a second thread: work of ordinary size never waits for it.
  static constexpr std::size_t kHuge = 1 << 20;
  [[nodiscard]] transport::Aside& aside(std::size_t bytes = 0) { return bytes > kHuge ? long_ : short_; }

  // To a worker: made when it is first asked for. On the lane's thread; good until the next event.
  [[nodiscard]] transport::Channel& to(const std::string& endpoint);
  // All calls to workers that are open end as lost. Any thread.
  void drop_workers();

 private:
  void due() override;

  transport::Loop loop_;
  std::unordered_map<std::string, std::unique_ptr<transport::Channel>> channels_;
  std::thread thread_;
  transport::Aside short_{loop_, 0};
  transport::Aside long_{loop_, 5};
};

}  // namespace arlo::gateway
