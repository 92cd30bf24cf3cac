// One thread's events: sockets that are ready, instants that have come, work that other threads hand over.
//
// All but stop() and post() belongs to the thread that runs the loop. What one handler ends may be what another event
// of the same turn is for: forget() takes that back, so a watch may go as soon as it is forgotten.
#pragma once

#include <atomic>
#include <cstdint>
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
    virtual void ready(std::uint32_t events) = 0;  // of epoll
    virtual void turn_ends() {}                    // see ask()

    // Its events come after those of others, and when the turn has been long they wait for the next: of what may cost
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

  // Work for a loop that may be gone by then; on any thread.
  class Handle {
   public:
    explicit Handle(Loop& loop) : loop_(&loop) {}
    void post(std::function<void()> work);  // not done where the loop is gone

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
  void post(std::function<void()> work);    // any thread; in order. After stop() it may not be done
  void at_end(std::function<void()> work);  // when the events of this turn have been handled
  // Any thread. Also true before the loop runs for the first time: its maker sets things up.
  [[nodiscard]] bool here() const {
    const auto thread = thread_.load(std::memory_order_relaxed);
    return thread == std::thread::id() || thread == std::this_thread::get_id();
  }
  // Any thread: at once where that is the loop's own.
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
  void set(Timer& timer, TimeNs at);  // in place of the instant before
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
  std::vector<Watch*> asking_;  // of these, those that are being called
  std::set<std::pair<TimeNs, Timer*>> timers_;
  epoll_event* events_ = nullptr;  // of this turn
  int count_ = 0;
};

}  // namespace arlo::transport
