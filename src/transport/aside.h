// A thread for work that would block a loop's thread for too long. It starts with the first work.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "transport/loop.h"

namespace arlo::transport {

class Aside {
 public:
  // `nicer`: added to the loop thread's nice value, so that connections come first on a shared core.
  Aside(Loop& loop, int nicer) : loop_(loop), nicer_(nicer) {}
  ~Aside();  // drops work that has not begun
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  // On the loop's thread. Each `work` runs on the other thread, one at a time; then `then` runs on the loop's thread.
  // The works of one client take turns with those of others.
  void run(const void* client, std::function<void()> work, std::function<void()> then);

 private:
  struct Job {
    std::function<void()> work, then;
  };
  void loop();

  Loop& loop_;
  const int nicer_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<const void*, std::deque<Job>>>
      lines_;  // under the mutex: one per client, in the order of their turns
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace arlo::transport
