// Predicted execution time of a runtime, from its latency profile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/latency_table.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

// The latency table (base/latency_table.h) as the scheduler asks it, which counts no batch beyond kMaxBatch rows. A
// static runtime is evaluated at its max_length for requests of any length.
class CostModel {
 public:
  // Throws std::invalid_argument for points that make no profile.
  explicit CostModel(const RuntimeSpec& spec);

  [[nodiscard]] TimeNs at(std::int32_t length, std::int32_t batch) const {
    if (static_cast<std::size_t>(batch) <= by_rows_.size()) return by_rows_[static_cast<std::size_t>(batch) - 1];
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
  [[nodiscard]] std::int32_t max_length() const { return max_length_; }
  [[nodiscard]] bool dynamic() const { return dynamic_; }
  // Returns the batch size beyond which a larger one saves next to nothing per row; max_batch for a dynamic runtime.
  [[nodiscard]] std::int32_t saturated() const { return saturated_; }
  // Returns the batch size from which on the throughput is at least four fifths of a saturated batch's.
  [[nodiscard]] std::int32_t efficient() const { return efficient_; }

 private:
  LatencyTable table_;
  std::int32_t max_length_;
  std::int32_t max_batch_;
  bool dynamic_;
  TimeNs alone_ = 0;  // static runtimes only
  TimeNs share_ = 0;  // static runtimes only
  std::int32_t saturated_ = 1;
  std::int32_t efficient_ = 1;
  std::vector<TimeNs> by_rows_;  // static runtimes only: of a batch of index + 1 rows
};

// The runtimes that a worker holds together; any of them may execute a row. A single runtime is a bundle as well.
class Bundle {
 public:
  struct Member {
    RuntimeId runtime;
    CostModel cost;
  };

  Bundle(RuntimeId runtime, CostModel cost) : members_{{runtime, std::move(cost)}} {}
  // At least one member.
  explicit Bundle(std::vector<Member> members);

  // Returns the runtime for a row of this length (at most longest()): the one on which it costs least, the shorter of
  // equal ones.
  [[nodiscard]] const Member& of(std::int32_t length) const {
    return members_.size() == 1 ? members_.front() : members_[of_length_[static_cast<std::size_t>(length)]];
  }
  [[nodiscard]] std::int32_t longest() const { return members_.back().cost.max_length(); }

  [[nodiscard]] TimeNs at(std::int32_t length, std::int32_t batch) const { return of(length).cost.at(length, batch); }
  [[nodiscard]] TimeNs alone(std::int32_t length) const { return of(length).cost.alone(length); }
  [[nodiscard]] TimeNs share(std::int32_t length) const { return of(length).cost.share(length); }
  // Returns the rows of a line that a turn should have room for: more than 1 only if enough batches wait (in all
  // lines), as those would pay for a row that has time only for a smaller batch.
  [[nodiscard]] std::int32_t turn_rows(std::int32_t length, std::int32_t in_line, std::int32_t in_all) const {
    constexpr std::int32_t kDeep = 4;  // batches
    const CostModel& cost = of(length).cost;
    return in_all <= kDeep * cost.saturated() ? 1 : std::clamp(in_line, 1, cost.efficient());
  }
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }

 private:
  std::vector<Member> members_;           // by max_length
  std::vector<std::uint16_t> of_length_;  // index in members_; empty for one member
};

}  // namespace arlo::dispatch
