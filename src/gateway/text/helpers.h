// Tokenizers that src/text does not support run in separate processes, which use the `tokenizers` package.
//
// A helper is started when there is work. It has one slice of a job at a time: clients take turns, and one of several
// helpers is kept free of long rows. The queue is bounded, and jobs expire at their deadline; if it is full, the client
// with the most bytes loses its last job. A helper that dies is restarted after a delay that doubles; its job goes to
// another one, once. A helper that takes too long for a slice of its size is killed, and its job is answered with an
// error. All of this runs on a separate thread, so no lane waits.
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
  static constexpr std::size_t kJob = 64 << 10;            // bytes that a job counts in addition to its texts
  static constexpr std::size_t kMostBytes = 128ULL << 20;  // of waiting jobs

  // `command`: starts one, which has its socket as standard input. No helpers if it is empty or `count` is 0.
  TextHelpers(const std::vector<std::string>& command, std::size_t count);
  ~TextHelpers();
  TextHelpers(const TextHelpers&) = delete;
  TextHelpers& operator=(const TextHelpers&) = delete;

  // Any thread. When the job is done, `then` runs on the loop's thread, unless the job was dropped before.
  void run(std::shared_ptr<text::Job> job, std::uint64_t client, TimeNs deadline, transport::Loop& loop,
           std::function<void()> then);

 private:
  struct Line {
    std::uint64_t client = 0;
    std::deque<HelperJob> jobs;
    std::size_t bytes = 0;
  };
  void take(HelperJob job, bool first);
  HelperJob leave(Line& line, std::size_t place);
  void make_room();
  void due() override;
  void over(Helper& helper) override;
  void ended(Helper& helper, std::unique_ptr<HelperJob> job, bool too_long) override;
  [[nodiscard]] Helper* free_for(const HelperJob& job, TimeNs now) const;
  void hand_out();
  void wait();
  void finish(HelperJob& job, MaybeFault fault);

  transport::Loop loop_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::deque<Line> lines_;  // one per client, in order of turns; none is empty
  std::size_t bytes_ = 0;   // in all lines
  std::thread thread_;
};

}  // namespace arlo::gateway
