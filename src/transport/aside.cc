#include "transport/aside.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace arlo::transport {

Aside::~Aside() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Aside::run(const void* client, std::function<void()> work, std::function<void()> then) {
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  {
    const std::lock_guard lock(mutex_);
    auto line = std::ranges::find(lines_, client, [](const auto& each) { return each.first; });
    if (line == lines_.end()) line = lines_.insert(line, {client, {}});
    line->second.push_back({std::move(work), std::move(then)});
  }
  wake_.notify_one();
}

void Aside::loop() {
  static_cast<void>(nice(nicer_));  // of this thread, on Linux
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !lines_.empty(); });
      if (ending_) return;
      auto line = std::move(lines_.front());
      lines_.pop_front();
      job = std::move(line.second.front());
      line.second.pop_front();
      if (!line.second.empty()) lines_.push_back(std::move(line));
    }
    job.work();
    loop_.post(std::move(job.then));
  }
}

}  // namespace arlo::transport
