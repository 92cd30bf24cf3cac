#include "transport/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "transport/grpc_message.h"

namespace arlo::transport {

namespace {

constexpr int kEvents = 256;
constexpr TimeNs kYielded = 500'000;  // part of a turn for watches that yield

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

Loop::Loop() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (epoll_ < 0 || wake_ < 0) fail("event loop");
  watch(wake_, EPOLLIN, waker_);
}

Loop::~Loop() {
  {
    const std::lock_guard lock(handle_->mutex_);
    handle_->loop_ = nullptr;
  }
  close(wake_);
  close(epoll_);
}

void Loop::Waker::ready(std::uint32_t) {
  std::uint64_t count = 0;
  while (read(loop_.wake_, &count, sizeof count) > 0) {
  }
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(loop_.mutex_);
    work.swap(loop_.posted_);
  }
  for (const auto& each : work) each();
}

void Loop::stop() {
  stopped_.store(true);
  post([] {});
}

void Loop::post(std::function<void()> work) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(work));
  }
  const std::uint64_t one = 1;
  // It fails only if the counter is full, and then the loop is awake.
  if (first && write(wake_, &one, sizeof one) < 0) return;
}

void Loop::Handle::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (loop_ != nullptr) loop_->post(std::move(work));
}

void Loop::at_end(std::function<void()> work) { ending_.push_back(std::move(work)); }

void Loop::control(int operation, int fd, std::uint32_t events, Watch& watch) const {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &watch;
  if (epoll_ctl(epoll_, operation, fd, &event) != 0) fail("epoll_ctl");
}

void Loop::watch(int fd, std::uint32_t events, Watch& watch) { control(EPOLL_CTL_ADD, fd, events, watch); }

void Loop::change(int fd, std::uint32_t events, Watch& watch) { control(EPOLL_CTL_MOD, fd, events, watch); }

void Loop::forget(int fd, Watch& watch) {
  control(EPOLL_CTL_DEL, fd, 0, watch);
  for (int i = 0; i < count_; ++i) {
    if (events_[i].data.ptr == &watch) events_[i].data.ptr = nullptr;
  }
  std::ranges::replace(asked_, &watch, nullptr);
  std::ranges::replace(asking_, &watch, nullptr);
}

void Loop::set(Timer& timer, TimeNs at) {
  clear(timer);
  if (at == kNever) return;
  timer.at = at;
  timers_.emplace(at, &timer);
}

void Loop::clear(Timer& timer) {
  if (timer.at != kNever) timers_.erase({timer.at, &timer});
  timer.at = kNever;
}

int Loop::until_next_ms() const {
  if (timers_.empty()) return -1;
  const TimeNs left = timers_.begin()->first - now_ns();
  return static_cast<int>(std::clamp<TimeNs>((left + kMs - 1) / kMs, 0, std::numeric_limits<int>::max()));
}

void Loop::run() {
  thread_.store(std::this_thread::get_id());
  FreeBlocks blocks;
  while (!stopped_.exchange(false)) turn(blocks.give_back() ? 0 : until_next_ms());
}

void Loop::turn(int timeout_ms) {
  std::array<epoll_event, kEvents> events;
  count_ = epoll_wait(epoll_, events.data(), kEvents, timeout_ms);
  if (count_ < 0 && errno != EINTR) fail("epoll_wait");
  events_ = events.data();
  bool some_yield = false;
  for (int i = 0; i < count_; ++i) {
    auto& event = events[static_cast<std::size_t>(i)];
    auto* const watch = static_cast<Watch*>(event.data.ptr);
    if (watch == nullptr) continue;
    if (watch->yields) {
      some_yield = true;
      continue;
    }
    event.data.ptr = nullptr;
    watch->ready(event.events);
  }
  if (some_yield) {
    // The next wait reports the remaining events again, after newer ones.
    const TimeNs end = now_ns() + kYielded;
    for (int i = 0; i < count_; ++i) {
      auto& event = events[static_cast<std::size_t>(i)];
      auto* const watch = static_cast<Watch*>(event.data.ptr);
      if (watch == nullptr) continue;
      watch->ready(event.events);
      if (now_ns() > end) break;
    }
  }
  count_ = 0;
  if (!timers_.empty()) {
    const TimeNs now = now_ns();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      Timer& timer = *timers_.begin()->second;
      clear(timer);
      timer.due();
    }
  }
  while (!ending_.empty() || !asked_.empty()) {
    std::vector<std::function<void()>> work;
    work.swap(ending_);
    for (const auto& each : work) each();
    asking_.swap(asked_);
    for (Watch* const& watch : asking_) {  // watches that end are removed
      if (watch != nullptr) watch->turn_ends();
    }
    asking_.clear();
  }
}

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
