// The next events in simulated time: fed arrivals, workers that begin or end a batch, workers that join, answers under
// way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <span>
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
    if (next_ > 0) {  // free the consumed arrivals
      arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(next_));
      what_.erase(what_.begin(), what_.begin() + static_cast<std::ptrdiff_t>(next_));
      next_ = 0;
    }
    arrived_.insert(arrived_.end(), arrived.begin(), arrived.end());
    for (std::size_t i = 0; i < length.size(); ++i) {
      what_.push_back({length[i], variant.empty() ? dispatch::VariantId{0} : variant[i]});
    }
    until_ = last;
  }

  // No more requests may be fed before this time.
  void passed(TimeNs time) { until_ = std::max(until_, time); }

  [[nodiscard]] TimeNs next() const { return next_ == arrived_.size() ? kNever : arrived_[next_]; }
  Arrival take() { return what_[next_++]; }

 private:
  std::vector<TimeNs> arrived_;  // consumed up to next_
  std::vector<Arrival> what_;
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
    joins_.push({at, made_, id});
  }

  // Those that were called off are not events.
  TimeNs next(const std::vector<Worker>& workers) {
    while (!joins_.empty() && workers[joins_.top().worker].join != joins_.top().number) joins_.pop();
    return joins_.empty() ? kNever : joins_.top().at;
  }

  // After next().
  WorkerId take() {
    const WorkerId id = joins_.top().worker;
    joins_.pop();
    return id;
  }

 private:
  struct Join {
    TimeNs at;
    std::uint64_t number;
    WorkerId worker;
    bool operator>(const Join& other) const { return std::pair(at, number) > std::pair(other.at, other.number); }
  };
  std::priority_queue<Join, std::vector<Join>, std::greater<>> joins_;
  std::uint64_t made_ = 0;
};

// Answers on their way back, for which all take equally long: first in, first out.
class Returns {
 public:
  void add(TimeNs at, Slot slot) { returns_.push_back({at, slot}); }
  [[nodiscard]] TimeNs next() const { return returns_.empty() ? kNever : returns_.front().at; }
  Slot take() {
    const Slot slot = returns_.front().slot;
    returns_.pop_front();
    return slot;
  }

 private:
  struct Return {
    TimeNs at;
    Slot slot;
  };
  std::deque<Return> returns_;
};

}  // namespace arlo::simulate
