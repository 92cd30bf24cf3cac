// One simulated worker: the rows that have reached it, the batch that it executes, and its next state when it is empty.
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch/cost_model.h"
#include "simulate/types.h"

namespace arlo::simulate {

using Slot = std::uint32_t;  // a request that is in the system

// Real execution times of a runtime. Batches of one row, nearly all there are, come from a table.
class ExecutionTimes {
 public:
  explicit ExecutionTimes(const dispatch::RuntimeSpec& spec) : model_(spec), dynamic_(spec.dynamic) {
    if (dynamic_) {
      for (std::int32_t length = 0; length <= spec.max_length; ++length) alone_.push_back(model_.at(length, 1));
    } else {
      alone_.push_back(model_.at(spec.max_length, 1));
    }
  }

  // `longest`: of the rows, in tokens, at most the runtime's max_length.
  [[nodiscard]] TimeNs of(std::int32_t longest, std::size_t rows) const {
    if (rows == 1) return dynamic_ ? alone_[static_cast<std::size_t>(longest)] : alone_.front();
    return model_.at(longest, static_cast<std::int32_t>(rows));
  }

 private:
  dispatch::CostModel model_;
  bool dynamic_;
  std::vector<TimeNs> alone_;
};

// First in, first out. Short nearly always, so a vector whose front is given back now and then.
class Inbox {
 public:
  struct Row {
    Slot slot;
    TimeNs ready;  // when it is at the worker
    RuntimeId runtime;
    dispatch::BatchId batch;  // that the scheduler formed; kNone: none
  };
  [[nodiscard]] bool empty() const { return head_ == rows_.size(); }
  [[nodiscard]] std::size_t size() const { return rows_.size() - head_; }
  [[nodiscard]] const Row& front() const { return rows_[head_]; }
  void push(Row row) { rows_.push_back(row); }
  void pop() {
    if (++head_ == rows_.size()) {
      clear();
    } else if (head_ >= 64 && head_ * 2 >= rows_.size()) {
      rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
  }
  void clear() {
    rows_.clear();
    head_ = 0;
  }

 private:
  std::vector<Row> rows_;
  std::size_t head_ = 0;
};

struct Worker {
  RuntimeId runtime = 0;   // or bundle
  RuntimeId executes = 0;  // the runtime of the batch
  WorkerState state = WorkerState::kStarting;
  dispatch::InstanceId instance = dispatch::kNone;  // while it serves or drains
  bool scheduled = false;                           // it has an event in the heap
  bool touched = false;                             // looked at again at the end of this event
  bool load_next = false;                           // when drained: load `next_runtime`; else it is gone
  RuntimeId next_runtime = 0;
  TimeNs next_delay = 0;
  std::uint64_t join = 0;  // number of the join it waits for; others are stale
  double slow = 1;
  TimeNs since = 0;
  TimeNs begun = 0;          // of the batch
  TimeNs ends = 0;           // of the batch
  TimeNs busy = 0;           // of the batches that have ended
  std::uint64_t served = 0;  // rows of them
  std::vector<Slot> batch;   // executing; empty: idle
  Inbox inbox;
};

}  // namespace arlo::simulate
