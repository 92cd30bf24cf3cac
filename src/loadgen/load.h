// The two ways of loading a target. Each runs its own threads from Begin until its last request is done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "loadgen/client.h"

namespace arlo::loadgen {

// Owned and called by the main thread. `on_finished` is called once, from any thread, when all that was sent is done.
class Load {
 public:
  virtual ~Load() = default;
  virtual void Begin(Clock::time_point start) = 0;
  // Send no more. What is in flight goes on.
  virtual void Stop() = 0;
  // True while requests may still be sent.
  virtual bool sending() const = 0;
  // After `on_finished`: ends the threads and hands over the records.
  virtual std::vector<Record> End() = 0;
};

std::unique_ptr<Load> MakeOpenLoop(const Plan& plan, Client* client, Report* report, std::function<void()> on_finished);
std::unique_ptr<Load> MakeClosedLoop(const Options& options, const Plan& plan, Client* client, Report* report,
                                     std::function<void()> on_finished);

}  // namespace arlo::loadgen
