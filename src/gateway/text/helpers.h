// Tokenizers that src/text does not support run in separate processes, which use the `tokenizers` package.
//
// A helper is started when there is work. It has one slice of a job at a time: clients take turns, and one of several
// helpers is kept free of long rows. The queue is bounded, and jobs expire at their deadline; if it is full, the client
// with the most bytes loses its last job. A helper that dies is restarted after a delay that doubles; its job goes to
// another one, once. A helper that takes too long for a slice of its size is killed, and its job is answered with an
// error. All of this runs on a separate thread, so no lane waits.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "text/job.h"
#include "transport/loop.h"

namespace arlo::gateway {

struct HelperJob {
  std::shared_ptr<text::Job> job;  // owned by its lane's thread, except the input
  text::Tokens tokens = {};
  TimeNs deadline = kNever;
  std::shared_ptr<transport::Loop::Handle> loop;
  std::function<void()> then;  // null: it has been answered
  std::uint64_t client = 0;    // whose turn it uses
  unsigned tries = 0;
  // Its rows are processed in slices, between which other jobs have their turns: [from, to) is the current one.
  std::size_t from = 0, to = 0;
  std::size_t slice_bytes = 0;
  std::size_t bytes = 0;  // of all rows from `from` on

  void cut();  // starts the next slice
  [[nodiscard]] bool whole() const { return to >= job->texts.size(); }
  [[nodiscard]] bool is_long() const { return slice_bytes > kSlice; }

  static constexpr std::size_t kSlice = 16 << 10;  // bytes; more if one row is longer
};

// A process that tokenises, on its owner's thread; see arlo/front/helper.py.
class Helper final : private transport::Loop::Watch {
 public:
  class Owner {
   public:
    virtual void over(Helper& helper) = 0;  // its slice is done
    // The process has died, with or without a job, or was killed because the job took `too_long`.
    virtual void ended(Helper& helper, std::unique_ptr<HelperJob> job, bool too_long) = 0;

   protected:
    ~Owner() = default;
  };

  // `of_long`: also for long jobs. It then has a higher nice value, so that it delays no one on shared cores.
  Helper(transport::Loop& loop, Owner& owner, const std::vector<std::string>& command, bool of_long);
  ~Helper();
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  [[nodiscard]] bool free(TimeNs now) const { return job_ == nullptr && now >= start_at_; }
  [[nodiscard]] bool takes(const HelperJob& job) const { return of_long_ || !job.is_long(); }
  [[nodiscard]] bool knows(const text::Elsewhere& tokenizer) const { return known_.contains(tokenizer.id); }
  [[nodiscard]] HelperJob* job() const { return job_.get(); }
  void begin(std::unique_ptr<HelperJob> job);  // starts the process if there is none
  [[nodiscard]] std::unique_ptr<HelperJob> let_go() { return std::move(job_); }
  // When check() is next due; `wanted`: a job needs this helper.
  [[nodiscard]] TimeNs next(bool wanted) const;
  // Kills a process whose job takes too long.
  void check(TimeNs now);

 private:
  void ready(std::uint32_t events) override;
  bool start();
  void write();
  void read();
  void add(const std::string& head, std::string_view blob);
  MaybeFault take(std::string_view head, std::string_view blob);
  void end(const char* why, bool too_long = false);

  transport::Loop& loop_;
  Owner& owner_;
  const std::vector<std::string> command_;
  const bool of_long_;
  pid_t pid_ = 0;
  int fd_ = -1;
  std::string in_, out_;
  std::size_t sent_ = 0;  // in out_
  std::unordered_set<std::uint64_t> known_;
  std::unique_ptr<HelperJob> job_;
  TimeNs until_ = 0;     // deadline of its slice
  TimeNs start_at_ = 0;  // earliest start
  TimeNs pause_ = 0;     // before the start after the next
};

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
