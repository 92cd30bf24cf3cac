// Predicted execution time of a runtime, from its latency profile.
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch/scheduler.h"

namespace arlo::dispatch {

// One curve over the length for each measured batch. Between two lengths linear, outside them flat; between two
// measured batches linear, below the smallest flat, above the largest in proportion to the rows (as if run in turns).
// A static runtime is evaluated at its max_length whatever the request's length.
class CostModel {
 public:
  // Throws std::invalid_argument for points that make no profile.
  explicit CostModel(const RuntimeSpec& spec);

  [[nodiscard]] TimeNs at(std::int32_t length, std::int32_t batch) const;

  // Time of one request alone.
  [[nodiscard]] TimeNs alone(std::int32_t length) const { return dynamic_ ? at(length, 1) : alone_; }
  // A request's share of its worker's time when batches are full: the time of a batch of max_batch, by its rows.
  [[nodiscard]] TimeNs share(std::int32_t length) const {
    return dynamic_ ? at(length, max_batch_) / max_batch_ : share_;
  }
  [[nodiscard]] bool batches() const { return max_batch_ > 1; }
  [[nodiscard]] std::int32_t max_batch() const { return max_batch_; }

 private:
  struct Point {
    std::int32_t length;
    TimeNs latency;
  };
  struct Curve {
    std::int32_t batch;
    std::vector<Point> points;  // by length
    [[nodiscard]] TimeNs at(std::int32_t length) const;
  };

  std::vector<Curve> curves_;  // by batch
  std::int32_t max_length_;
  std::int32_t max_batch_;
  bool dynamic_;
  TimeNs alone_ = 0;  // static runtimes only
  TimeNs share_ = 0;  // static runtimes only
};

}  // namespace arlo::dispatch
