// One thread of the data path: its loop, and its connections to workers.
//
// A request is received, dispatched, sent on, answered and finished on one lane, without changing threads. Work that
// begins elsewhere, such as a retry or the end of a drain, is handed to the request's lane.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "transport/channel.h"
#include "transport/loop.h"

namespace arlo::gateway {

class Lane final : private transport::Loop::Timer {
 public:
  Lane();
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void start();  // starts its thread
  void stop();   // ends it; connections to workers are closed
  [[nodiscard]] transport::Loop& loop() { return loop_; }
  // Runs work that would block the lane's thread too long. Work that takes as long as tokenising more than kHuge
  // `bytes` runs on a second thread, so ordinary work never waits for it.
  static constexpr std::size_t kHuge = 1 << 20;
  [[nodiscard]] transport::Aside& aside(std::size_t bytes = 0) { return bytes > kHuge ? long_ : short_; }

  // The channel to a worker, made on first use. On the lane's thread; valid until the next event.
  [[nodiscard]] transport::Channel& to(const std::string& endpoint);
  // Ends all open calls to workers as lost. Any thread.
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
