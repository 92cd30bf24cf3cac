// A fixed number of senders ("slots"), each with one request in flight: the thread that takes an answer sends the next.

#include "loadgen/load.h"

namespace arlo::loadgen {

namespace {

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

std::unique_ptr<Load> MakeClosedLoop(const Options& options, const Plan& plan, Client* client, Report* report,
                                     std::function<void()> on_finished) {
  return std::make_unique<ClosedLoop>(options, plan, client, report, std::move(on_finished));
}

}  // namespace arlo::loadgen
