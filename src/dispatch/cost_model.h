// Predicted execution time of a runtime, from its latency profile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/latency_table.h"
#include "dispatch/scheduler.h"

namespace arlo::dispatch {

// The latency table (base/latency_table.h) as the scheduler asks it, which counts no batch beyond kMaxBatch rows. A
// static runtime is evaluated at its max_length whatever the request's length.
class CostModel {
 public:
  // Throws std::invalid_argument for points that make no profile.
  explicit CostModel(const RuntimeSpec& spec);

  [[nodiscard]] TimeNs at(std::int32_t length, std::int32_t batch) const {
    return table_.at(dynamic_ ? length : max_length_, std::min(batch, kMaxBatch));
  }

  // Time of one request alone.
  [[nodiscard]] TimeNs alone(std::int32_t length) const { return dynamic_ ? at(length, 1) : alone_; }
  // A request's share of its worker's time when batches are full: the time of a batch of max_batch, by its rows.
  [[nodiscard]] TimeNs share(std::int32_t length) const {
    return dynamic_ ? at(length, max_batch_) / max_batch_ : share_;
  }
  [[nodiscard]] bool batches() const { return max_batch_ > 1; }
  [[nodiscard]] std::int32_t max_batch() const { return max_batch_; }

 private:
  LatencyTable table_;
  std::int32_t max_length_;
  std::int32_t max_batch_;
  bool dynamic_;
  TimeNs alone_ = 0;  // static runtimes only
  TimeNs share_ = 0;  // static runtimes only
};

}  // namespace arlo::dispatch
