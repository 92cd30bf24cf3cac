// A thread for work that would keep a loop's thread from its connections for too long. It starts with the first work.
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
  // `nicer`: than the loop's thread, so that connections come first where they share a core.
  Aside(Loop& loop, int nicer) : loop_(loop), nicer_(nicer) {}
  ~Aside();  // what has not begun is not done
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  // On the loop's thread. `work` runs on the other one, one after the other, `then` on the loop's when it is done. The
  // works of one client take turns with those of others.
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
      lines_;  // under the mutex: of each client, whose turn it is first
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace arlo::transport
