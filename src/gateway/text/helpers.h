// The tokenizers that src/text does not know: in processes of their own, which use the `tokenizers` package.
//
// A helper is started when there is something for it to do. It has one job at a time; what waits for one is bounded,
// and ends at its deadline. A helper that dies is started again, after a while that doubles; its job goes to another
// one, once. One that has been at a job for too long is killed. All of this has a thread of its own, so no lane waits.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gateway/text/helper.h"
#include "text/job.h"
#include "transport/loop.h"

namespace arlo::gateway {

class TextHelpers final : private transport::Loop::Timer, private Helper::Owner {
 public:
  static constexpr std::size_t kMostWaiting = 1024;       // jobs
  static constexpr std::size_t kMostBytes = 64ULL << 20;  // of their texts

  // `command`: starts one, which finds its socket as standard input. None, where it is empty or `count` is 0.
  TextHelpers(const std::vector<std::string>& command, std::size_t count);
  ~TextHelpers();
  TextHelpers(const TextHelpers&) = delete;
  TextHelpers& operator=(const TextHelpers&) = delete;

  // Any thread. When the job is done, `then` runs on the loop's thread, unless the job was dropped before.
  void run(std::shared_ptr<text::Job> job, TimeNs deadline, transport::Loop& loop, std::function<void()> then);

 private:
  void take(HelperJob job);
  void due() override;
  void over(Helper& helper) override;
  void ended(Helper& helper, std::unique_ptr<HelperJob> job) override;
  void hand_out();
  void wait();
  void finish(HelperJob& job, MaybeFault fault);

  transport::Loop loop_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::deque<HelperJob> waiting_;
  std::size_t bytes_ = 0;  // of those that wait
  std::thread thread_;
};

}  // namespace arlo::gateway
