// The two ways of loading a target. Each runs its own threads from Begin until its last request is done.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "loadgen/client.h"

namespace arlo::loadgen {

// Owned and called by the main thread. `on_finished` is called once, from any thread, when all sent requests are done.
class Load {
 public:
  Load(const Plan& plan, Client* client, Report* report, std::function<void()> on_finished)
      : plan_(plan), client_(client), report_(report), on_finished_(std::move(on_finished)) {}
  virtual ~Load() = default;
  virtual void Begin(Clock::time_point start) = 0;
  // Stops sending. Requests in flight go on.
  virtual void Stop() = 0;
  // True while requests may still be sent.
  virtual bool sending() const = 0;
  // After `on_finished`: ends the threads and hands over the records.
  virtual std::vector<Record> End() = 0;

 protected:
  // On the thread of the call's queue; the call is to be released, or sent again.
  virtual void Answered(size_t thread, Call* call) = 0;

  void StartThreads() {
    for (size_t t = 0; t < client_->threads(); ++t) {
      threads_.emplace_back([this, t] {
        void* tag = nullptr;
        bool ok = false;
        while (client_->queue(t)->Next(&tag, &ok)) {
          Call* call = static_cast<Call*>(tag);
          call->record.done_us = MicrosSince(start_, Clock::now());
          client_->Finish(call);
          Answered(t, call);
        }
      });
    }
  }
  void EndThreads() {
    for (size_t t = 0; t < client_->threads(); ++t) client_->queue(t)->Shutdown();
    for (std::thread& thread : threads_) thread.join();
  }
  void OneLess() {
    if (pending_.fetch_sub(1) == 1) on_finished_();
  }

  const Plan& plan_;
  Client* const client_;
  Report* const report_;
  Clock::time_point start_;
  std::atomic<uint64_t> pending_{1};  // requests that may still be answered, and the sender

 private:
  const std::function<void()> on_finished_;
  std::vector<std::thread> threads_;
};

std::unique_ptr<Load> MakeLoad(const Options& options, const Plan& plan, Client* client, Report* report,
                               std::function<void()> on_finished);

}  // namespace arlo::loadgen
