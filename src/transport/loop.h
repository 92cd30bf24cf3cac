// One thread's events: ready sockets, due timers, and work that other threads hand over.
//
// All but stop() and post() belongs to the thread that runs the loop. A handler may end the target of another event in
// the same turn: forget() revokes that event, so a watch may be deleted once it is forgotten.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/time.h"

struct epoll_event;

namespace arlo::transport {

class Loop {
 public:
  class Watch {
   public:
    virtual void ready(std::uint32_t events) = 0;  // epoll events
    virtual void turn_ends() {}                    // see ask()

    // Events of this watch come after those of others, and in a long turn wait for the next one: for work that may cost
    // more than it is worth.
    bool yields = false;

   protected:
    ~Watch() = default;
  };
  class Timer {
   public:
    virtual void due() = 0;

    TimeNs at = kNever;  // the loop's

   protected:
    ~Timer() = default;
  };

  // Posts work to a loop that may be gone by then; on any thread.
  class Handle {
   public:
    explicit Handle(Loop& loop) : loop_(&loop) {}
    void post(std::function<void()> work);  // dropped if the loop is gone

   private:
    friend class Loop;
    std::mutex mutex_;
    Loop* loop_;
  };

  // Throws std::system_error.
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void run();                               // until stop(), and again after it
  void stop();                              // any thread
  void post(std::function<void()> work);    // any thread; in order. May be dropped after stop()
  void at_end(std::function<void()> work);  // after the events of this turn are handled
  // Any thread. Also true before the loop first runs, while its maker sets things up.
  [[nodiscard]] bool here() const {
    const auto thread = thread_.load(std::memory_order_relaxed);
    return thread == std::thread::id() || thread == std::this_thread::get_id();
  }
  // Any thread: runs at once on the loop's thread.
  template <class Work>
  void run_here(Work&& work) {
    if (here()) {
      work();
    } else {
      post(std::forward<Work>(work));
    }
  }

  [[nodiscard]] const std::shared_ptr<Handle>& handle() const { return handle_; }

  void watch(int fd, std::uint32_t events, Watch& watch);
  void change(int fd, std::uint32_t events, Watch& watch);
  void ask(Watch& watch) { asked_.push_back(&watch); }  // calls turn_ends() once, when this turn's events are handled
  void forget(int fd, Watch& watch);
  void set(Timer& timer, TimeNs at);  // replaces the previous instant
  void clear(Timer& timer);

 private:
  class Waker final : public Watch {
   public:
    explicit Waker(Loop& loop) : loop_(loop) {}
    void ready(std::uint32_t events) override;

   private:
    Loop& loop_;
  };

  void control(int operation, int fd, std::uint32_t events, Watch& watch) const;
  void turn(int timeout_ms);
  [[nodiscard]] int until_next_ms() const;

  std::shared_ptr<Handle> handle_ = std::make_shared<Handle>(*this);
  int epoll_;
  int wake_;
  Waker waker_{*this};
  std::atomic<bool> stopped_{false};
  std::atomic<std::thread::id> thread_{};
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // under the mutex
  std::vector<std::function<void()>> ending_;
  std::vector<Watch*> asked_;
  std::vector<Watch*> asking_;  // those being called
  std::set<std::pair<TimeNs, Timer*>> timers_;
  epoll_event* events_ = nullptr;  // of this turn
  int count_ = 0;
};

// A thread for work that would block a loop's thread for too long. It starts with the first work.
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
