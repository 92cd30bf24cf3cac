// The next events in simulated time: fed arrivals, workers that begin or end a batch, workers that join, answers under
// way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "dispatch/indexed_heap.h"
#include "simulate/checks.h"
#include "simulate/worker.h"

namespace arlo::simulate {

// Requests that are yet to arrive, in order of time.
class Feed {
 public:
  struct Arrival {
    TimeNs at;
    std::int32_t length;
    dispatch::VariantId variant;
  };

  // `variant` may be empty: all are for the first.
  void add(std::span<const TimeNs> arrived, std::span<const std::int32_t> length,
           std::span<const dispatch::VariantId> variant) {
    need(arrived.size() == length.size(), "arrived and length: not equally many");
    need(variant.empty() || variant.size() == length.size(), "arrived and variant: not equally many");
    for (const dispatch::VariantId v : variant) need(v < dispatch::kVariants, "variant: not below 64");
    TimeNs last = until_;
    for (const TimeNs at : arrived) {
      need(at >= last, "arrived: times must ascend, from now and from what was fed before");
      last = at;
    }
    need(last < kFar, "arrived: times must lie within 2^61 ns");
    arrivals_.erase(arrivals_.begin(), arrivals_.begin() + static_cast<std::ptrdiff_t>(std::exchange(next_, 0)));
    for (std::size_t i = 0; i < length.size(); ++i) {
      arrivals_.push_back({arrived[i], length[i], variant.empty() ? dispatch::VariantId{0} : variant[i]});
    }
    until_ = last;
  }

  // No more requests may be fed before this time.
  void passed(TimeNs time) { until_ = std::max(until_, time); }

  [[nodiscard]] TimeNs next() const { return next_ == arrivals_.size() ? kNever : arrivals_[next_].at; }
  const Arrival& take() { return arrivals_[next_++]; }

 private:
  std::vector<Arrival> arrivals_;  // consumed up to next_
  std::size_t next_ = 0;
  TimeNs until_ = 0;
};

// Workers by their next event: at most one each.
class Steps {
 public:
  void add_worker() { positions_.push_back(0); }
  [[nodiscard]] TimeNs next() const { return heap_.empty() ? kNever : static_cast<TimeNs>(heap_.top().key); }
  [[nodiscard]] WorkerId worker() const { return heap_.top().id; }

  void schedule(Worker& worker, WorkerId id, TimeNs at) {
    const auto key = static_cast<std::uint64_t>(at);
    if (worker.scheduled) {
      heap_.update(positions_, id, key);
    } else {
      heap_.push(positions_, id, key);
      worker.scheduled = true;
    }
  }

  void unschedule(Worker& worker, WorkerId id) {
    if (worker.scheduled) heap_.erase(positions_, id);
    worker.scheduled = false;
  }

 private:
  dispatch::IndexedHeap heap_;
  dispatch::HeapPositions positions_;
};

// Workers that are to join. A later one of the same worker, or `worker.join` = 0, calls a join off.
class Joins {
 public:
  void add(Worker& worker, WorkerId id, TimeNs at) {
    worker.join = ++made_;
    joins_.emplace(at, made_, id);
  }

  // Those that were called off are not events.
  TimeNs next(const std::vector<Worker>& workers) {
    for (; !joins_.empty(); joins_.pop()) {
      const auto& [at, number, worker] = joins_.top();
      if (workers[worker].join == number) return at;
    }
    return kNever;
  }

  // After next().
  WorkerId take() {
    const WorkerId id = std::get<2>(joins_.top());
    joins_.pop();
    return id;
  }

 private:
  using Join = std::tuple<TimeNs, std::uint64_t, WorkerId>;  // in the order in which they were made
  std::priority_queue<Join, std::vector<Join>, std::greater<>> joins_;
  std::uint64_t made_ = 0;
};

// Answers on their way back, for which all take equally long: first in, first out.
class Returns {
 public:
  void add(TimeNs at, Slot slot) { returns_.emplace_back(at, slot); }
  [[nodiscard]] TimeNs next() const { return returns_.empty() ? kNever : returns_.front().first; }
  Slot take() {
    const Slot slot = returns_.front().second;
    returns_.pop_front();
    return slot;
  }

 private:
  std::deque<std::pair<TimeNs, Slot>> returns_;
};

}  // namespace arlo::simulate
