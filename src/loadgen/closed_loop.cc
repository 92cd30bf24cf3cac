// A fixed number of senders ("slots"), each with one request in flight: the thread that takes an answer sends the next.

#include "loadgen/load.h"

namespace arlo::loadgen {

namespace {

class ClosedLoop final : public Load {
 public:
  ClosedLoop(const Options& options, const Plan& plan, Client* client, Report* report,
             std::function<void()> on_finished)
      : options_(options),
        plan_(plan),
        client_(client),
        report_(report),
        on_finished_(std::move(on_finished)),
        records_(client->threads()) {}

  void Begin(Clock::time_point start) override {
    start_ = start;
    // The first sends, before the threads: from then on only a slot's own thread sends for it.
    for (uint32_t slot = 0; slot < options_.concurrency; ++slot) {
      pending_.fetch_add(1);
      Call* call = client_->Acquire();
      call->slot = slot;
      if (!SendNext(call)) Retire(call);
    }
    for (size_t t = 0; t < client_->threads(); ++t) threads_.emplace_back([this, t] { Run(t); });
    OneLess();
  }

  void Stop() override { stop_.store(true); }
  bool sending() const override { return !stop_.load() && pending_.load() > 0 && !Exhausted(); }

  std::vector<Record> End() override {
    for (size_t t = 0; t < client_->threads(); ++t) client_->queue(t)->Shutdown();
    for (std::thread& thread : threads_) thread.join();
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
    std::optional<Clock::time_point> deadline;
    if (options_.timeout_us > 0) deadline = now + std::chrono::microseconds(options_.timeout_us);
    client_->Start(call, call->slot % client_->channels(), deadline);
    return true;
  }

  void Run(size_t thread) {
    void* tag = nullptr;
    bool ok = false;
    while (client_->queue(thread)->Next(&tag, &ok)) {
      Call* call = static_cast<Call*>(tag);
      call->record.done_us = MicrosSince(start_, Clock::now());
      client_->Finish(call);
      records_[thread].push_back(call->record);
      const uint32_t slot = call->slot;
      client_->Release(call);
      call = client_->Acquire();
      call->slot = slot;
      if (!SendNext(call)) Retire(call);
    }
  }

  void Retire(Call* call) {
    client_->Release(call);
    OneLess();
  }

  void OneLess() {
    if (pending_.fetch_sub(1) == 1) on_finished_();
  }

  const Options& options_;
  const Plan& plan_;
  Client* const client_;
  Report* const report_;
  const std::function<void()> on_finished_;
  Clock::time_point start_;
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> pending_{1};  // slots that still send, and Begin
  std::atomic<bool> stop_{false};
  std::vector<std::vector<Record>> records_;  // one per thread
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Load> MakeClosedLoop(const Options& options, const Plan& plan, Client* client, Report* report,
                                     std::function<void()> on_finished) {
  return std::make_unique<ClosedLoop>(options, plan, client, report, std::move(on_finished));
}

}  // namespace arlo::loadgen
