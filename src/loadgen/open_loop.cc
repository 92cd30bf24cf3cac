// One thread sends by the clock, the others take what comes back, so that neither makes the other late.

#include <sys/prctl.h>

#include "loadgen/load.h"

namespace arlo::loadgen {

namespace {

class OpenLoop final : public Load {
 public:
  OpenLoop(const Plan& plan, Client* client, Report* report, std::function<void()> on_finished)
      : plan_(plan), client_(client), report_(report), on_finished_(std::move(on_finished)), records_(plan.entries()) {}

  void Begin(Clock::time_point start) override {
    start_ = start;
    for (size_t t = 0; t < client_->threads(); ++t) receivers_.emplace_back([this, t] { Receive(t); });
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
    for (size_t t = 0; t < client_->threads(); ++t) client_->queue(t)->Shutdown();
    for (std::thread& receiver : receivers_) receiver.join();
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

  void Receive(size_t thread) {
    void* tag = nullptr;
    bool ok = false;
    while (client_->queue(thread)->Next(&tag, &ok)) {
      Call* call = static_cast<Call*>(tag);
      call->record.done_us = MicrosSince(start_, Clock::now());
      client_->Finish(call);
      records_[call->record.index] = call->record;
      client_->Release(call);
      OneLess();
    }
  }

  void OneLess() {
    if (pending_.fetch_sub(1) == 1) on_finished_();
  }

  const Plan& plan_;
  Client* const client_;
  Report* const report_;
  const std::function<void()> on_finished_;
  Clock::time_point start_;
  std::vector<Record> records_;       // [i] is written by the one thread that finishes request i
  std::atomic<uint64_t> pending_{1};  // requests in flight, and the sender
  std::atomic<bool> sending_{true};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread sender_;
  std::vector<std::thread> receivers_;
};

}  // namespace

std::unique_ptr<Load> MakeOpenLoop(const Plan& plan, Client* client, Report* report,
                                   std::function<void()> on_finished) {
  return std::make_unique<OpenLoop>(plan, client, report, std::move(on_finished));
}

}  // namespace arlo::loadgen
