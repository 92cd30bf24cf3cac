// Which waiting requests go with the one whose turn it is, as one batch.
//
// They wait with it: in the FIFO of the instance, in the lines that its runtime serves, or in its line of those that
// are overdue. They are taken in turn, up to the rows from which on a larger batch saves next to nothing
// (CostModel::saturated), and no further than the time limits allow: with each row that is taken the batch ends later
// for all of them. `fill` meets the deadlines; `deadline` also keeps rows on time if they can be.
//
// Rows of several lines go together where the cost table shows a gain; a few rows more cost little in a small batch.
// Up: while the rows that wait with the first one are fewer than a full batch, it takes the runtime of a longer line,
// together with the rows there, if one batch of both takes no longer than two. Down: where a batch has room left, a
// row of a shorter line goes along when it makes the batch longer by less than its share of the batch that its own line
// would give.
//
// Requests on trial (Scheduler::retry) go only with each other, in halves of the batch that failed.
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch/batch_chooser.h"
#include "dispatch/state.h"

namespace arlo::dispatch {

class ByDeadline final : public BatchChooser {
 public:
  explicit ByDeadline(const State& state) : s_(state) {}

  // The first row always goes. O(lines + rows looked at).
  void choose(const Turn& turn, BatchChoice& choice) override;

 private:
  struct Batch {
    InstanceId id;
    const Bundle::Member* on;
    std::int32_t most;     // rows
    VariantId variant;     // of its rows
    std::uint8_t trial;    // of its rows
    TimeNs start;          // of its execution
    TimeNs limit;          // by when all of them want it to end
    std::int32_t longest;  // tokens
    TimeNs time;           // by the profile
  };
  enum class Fit : std::uint8_t { kTaken, kPassed, kNoGain, kFull };

  // Returns the runtime on which the first row and those that wait with it take the least time.
  [[nodiscard]] const Bundle::Member& runtime_for(const Request& first, const Bundle& bundle, const Instance& x,
                                                  TimeNs start) const;
  [[nodiscard]] std::int32_t waiting_for(const Bundle::Member& member, const Bundle& bundle, VariantId variant) const;

  Fit take(RequestHandle h, Batch& batch, std::vector<RequestHandle>& rows) const;
  void from_lines(Batch& batch, std::vector<RequestHandle>& rows);
  // False when the batch takes no more.
  bool from(const Fifo& fifo, Batch& batch, std::vector<RequestHandle>& rows) const;
  [[nodiscard]] TimeNs limit(const Request& r) const;
  // The rows of this line take this runtime of the bundle.
  [[nodiscard]] bool own(std::int32_t level, const Bundle& bundle, RuntimeId runtime) const {
    return bundle.of(s_.queue.level(level).max_length).runtime == runtime;
  }

  const State& s_;
  std::vector<RequestHandle> fronts_;  // of several lines of one runtime
};

}  // namespace arlo::dispatch
