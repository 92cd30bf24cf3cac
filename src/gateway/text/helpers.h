// The tokenizers that src/text does not know: in processes of their own, which use the `tokenizers` package.
//
// A helper is started when there is something for it to do. It has one slice of a job at a time: clients take turns,
// and one helper of several is kept free of rows that are long. What waits is bounded, and ends at its deadline; where
// there is no room, the client with most of it loses its last job. A helper that dies is started again, after a while
// that doubles; its job goes to another one, once. One that has been at a slice for too long, by its size, is killed,
// and its job is answered with an error. All of this has a thread of its own, so no lane waits.
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
  static constexpr std::size_t kJob = 64 << 10;            // bytes that a job counts beside its texts
  static constexpr std::size_t kMostBytes = 128ULL << 20;  // of jobs that wait

  // `command`: starts one, which finds its socket as standard input. None, where it is empty or `count` is 0.
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
  std::deque<Line> lines_;  // of clients, whose turn it is first; none is empty
  std::size_t bytes_ = 0;   // of all lines
  std::thread thread_;
};

}  // namespace arlo::gateway
