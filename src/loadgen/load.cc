#include "loadgen/load.h"

#include <sys/prctl.h>

#include <condition_variable>
#include <mutex>

namespace arlo::loadgen {

namespace {

// One thread sends by the clock, the others take responses, so that neither delays the other.
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

// A fixed number of senders ("slots"), each with one request in flight: the thread that takes an answer sends the next.
class ClosedLoop final : public Load {
 public:
  ClosedLoop(const Options& options, const Plan& plan, Client* client, Report* report,
             std::function<void()> on_finished)
      : Load(plan, client, report, std::move(on_finished)), options_(options), records_(client->threads()) {}

  void Begin(Clock::time_point start) override {
    start_ = start;
    // The first sends, before the threads: from then on only a slot's own thread sends for it.
    for (uint32_t slot = 0; slot < options_.concurrency; ++slot) {
      pending_.fetch_add(1);
      Call* call = client_->Acquire();
      call->slot = slot;
      if (!SendNext(call)) Retire(call);
    }
    StartThreads();
    OneLess();
  }

  void Stop() override { stop_.store(true); }
  bool sending() const override { return !stop_.load() && pending_.load() > 0 && !Exhausted(); }

  std::vector<Record> End() override {
    EndThreads();
    std::vector<Record> all;
    for (const std::vector<Record>& part : records_) all.insert(all.end(), part.begin(), part.end());
    return all;
  }

 private:
  bool Exhausted() const {
    if (options_.requests > 0 && next_.load() >= options_.requests) return true;
    return options_.seconds > 0 && Clock::now() - start_ >= std::chrono::duration<double>(options_.seconds);
  }

  bool SendNext(Call* call) {
    if (stop_.load() || Exhausted()) return false;
    const uint64_t index = next_.fetch_add(1);
    if (options_.requests > 0 && index >= options_.requests) return false;
    const Clock::time_point now = Clock::now();
    call->record.index = static_cast<uint32_t>(index);
    call->record.payload = static_cast<uint32_t>(index % plan_.payloads());
    call->record.scheduled_us = call->record.sent_us = MicrosSince(start_, now);
    report_->Sent(0);
    client_->Start(call, call->slot % client_->channels(), std::nullopt);
    return true;
  }

  void Answered(size_t thread, Call* call) override {
    records_[thread].push_back(call->record);
    const uint32_t slot = call->slot;
    client_->Release(call);
    call = client_->Acquire();
    call->slot = slot;
    if (!SendNext(call)) Retire(call);
  }

  void Retire(Call* call) {
    client_->Release(call);
    OneLess();
  }

  const Options& options_;
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::vector<Record>> records_;  // one per thread
};

}  // namespace

std::unique_ptr<Load> MakeLoad(const Options& options, const Plan& plan, Client* client, Report* report,
                               std::function<void()> on_finished) {
  if (options.mode == Options::Mode::kClosed) {
    return std::make_unique<ClosedLoop>(options, plan, client, report, std::move(on_finished));
  }
  return std::make_unique<OpenLoop>(plan, client, report, std::move(on_finished));
}

}  // namespace arlo::loadgen
