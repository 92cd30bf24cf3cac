// One thread sends by the clock, the others take responses, so that neither delays the other.

#include <sys/prctl.h>

#include <condition_variable>
#include <mutex>

#include "loadgen/load.h"

namespace arlo::loadgen {

namespace {

class OpenLoop final : public Load {
 public:
  OpenLoop(const Plan& plan, Client* client, Report* report, std::function<void()> on_finished)
      : Load(plan, client, report, std::move(on_finished)), records_(plan.entries()) {}

  void Begin(Clock::time_point start) override {
    start_ = start;
    StartThreads();
    sender_ = std::thread([this] { Send(); });
  }

  void Stop() override {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }

  bool sending() const override { return sending_.load(); }

  std::vector<Record> End() override {
    sender_.join();
    EndThreads();
    return std::move(records_);
  }

 private:
  // False: stopped.
  bool WaitUntil(Clock::time_point due) {
    std::unique_lock lock(mutex_);
    if (due > Clock::now()) wake_.wait_until(lock, due, [this] { return stop_; });
    return !stop_;
  }

  void Send() {
    prctl(PR_SET_TIMERSLACK, 1);  // wake at the time asked for, not up to 50 us later
    for (size_t i = 0; i < plan_.entries(); ++i) {
      const int64_t scheduled_us = plan_.send_at_us(i);
      const Clock::time_point due = start_ + std::chrono::microseconds(scheduled_us);
      if (!WaitUntil(due)) break;
      Call* call = client_->Acquire();
      call->record.index = static_cast<uint32_t>(i);
      call->record.payload = plan_.payload_of(i);
      call->record.scheduled_us = scheduled_us;
      call->record.sent_us = MicrosSince(start_, Clock::now());
      pending_.fetch_add(1);
      report_->Sent(call->record.sent_us - scheduled_us);
      std::optional<Clock::time_point> deadline;
      if (plan_.timeout_us(i) > 0) deadline = due + std::chrono::microseconds(plan_.timeout_us(i));
      client_->Start(call, i % client_->channels(), deadline);
    }
    sending_.store(false);
    OneLess();
  }

  void Answered(size_t, Call* call) override {
    records_[call->record.index] = call->record;
    client_->Release(call);
    OneLess();
  }

  std::vector<Record> records_;  // [i] is written by the one thread that finishes request i
  std::atomic<bool> sending_{true};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread sender_;
};

}  // namespace

std::unique_ptr<Load> MakeOpenLoop(const Plan& plan, Client* client, Report* report,
                                   std::function<void()> on_finished) {
  return std::make_unique<OpenLoop>(plan, client, report, std::move(on_finished));
}

}  // namespace arlo::loadgen
