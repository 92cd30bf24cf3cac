// late: late binding (ours). See late.cc.
#pragma once

#include <array>
#include <tuple>

#include "dispatch/lines/level_fifos.h"
#include "dispatch/lines/shares.h"
#include "dispatch/rule.h"

namespace arlo::dispatch {

class Late final : public Rule {
 public:
  Late(const LevelFifos& lines, const RequestSlab& requests, const Shares& shares, Batching batching)
      : lines_(lines),
        requests_(requests),
        shares_(shares),
        batching_(batching != Batching::kOne),
        by_worth_(batching == Batching::kDeadline) {}

  [[nodiscard]] Key key(const Instance& x) const override;

  // Returns where the first request of the home of `level` should start now; queue.groups() when it should wait. It has
  // this length, and is counted in the FIFOs unless they are empty.
  [[nodiscard]] GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t length, TimeNs now) override;

  [[nodiscard]] std::unique_ptr<Binding> make_binding(const Parts& parts) override;

  // The waiting request that an instance with room should start now; kNone when it should start none.
  [[nodiscard]] RequestHandle next_for(MultiLevelQueue& queue, InstanceId id, TimeNs now) const;

  // Returns when a request would finish at this home if its turn were next, with so many in its line.
  [[nodiscard]] TimeNs finish_of_turn(MultiLevelQueue& queue, std::int32_t home, std::int32_t length,
                                      std::int32_t in_line, TimeNs now) const;
  // Returns when a request that lines up for this home with this rank would finish: there, or with the help of longer
  // levels. The search stops at the first level that is in time.
  [[nodiscard]] TimeNs finish_in_line(MultiLevelQueue& queue, std::int32_t home, std::int32_t length, Rank rank,
                                      TimeNs limit, TimeNs now) const;
  // Returns the time until an instance of this home is free, plus all work that waits for these instances, of any
  // variant, divided by their number.
  [[nodiscard]] TimeNs wait_of_all(MultiLevelQueue& queue, std::int32_t home, TimeNs now) const;

 private:
  // The requests that wait for one home level: the FIFOs of the levels `first` to `home`.
  struct Backlog {
    std::int32_t first;
    std::int32_t home;
    std::int32_t count;
    std::int64_t tokens;
  };
  // The request of a variant that an instance may start next.
  struct Turn {
    RequestHandle next = kNone;
    std::int32_t passed = 0;  // Instance::passed when it starts
  };
  [[nodiscard]] Turn turn_of(MultiLevelQueue& queue, const MultiLevelQueue::Held& held, InstanceId id,
                             TimeNs now) const;
  // The variant among those that an instance holds several of: of `turns`, by their order in held().
  [[nodiscard]] std::size_t first_of(const MultiLevelQueue& queue, const Instance& x,
                                     const std::array<Turn, kVariants>& turns, TimeNs now) const;
  // The order of batches, by the rows that are next in their lines; the least goes first.
  using Order = std::tuple<bool, double, Rank>;
  // Batching::kDeadline. By what a row of the batch costs: as a multiple of what it costs in a full one, or in time.
  enum class Cost : std::uint8_t { kUnfilled, kTime };
  [[nodiscard]] Order by_worth(const MultiLevelQueue& queue, const Instance& x, const MultiLevelQueue::Held& held,
                               RequestHandle next, Cost by, TimeNs now) const;
  // The row whose batch goes first, of the lines from `lowest` that a bundle serves.
  [[nodiscard]] RequestHandle front_by_worth(const MultiLevelQueue& queue, const MultiLevelQueue::Held& held,
                                             std::int32_t lowest, InstanceId id, TimeNs now) const;
  // Returns how long other variants occupy the instances of a variant until the work before a row that wants to end by
  // `limit`, `own` ns of all instances, is done.
  [[nodiscard]] TimeNs others_before(const MultiLevelQueue& queue, std::int32_t home, TimeNs own, TimeNs limit) const;
  // Returns the work of a variant's lines, or of their rows that want to end by `limit`, for all instances together.
  [[nodiscard]] TimeNs work_of(const MultiLevelQueue& queue, VariantId variant, TimeNs limit) const;
  // Returns the number of a line's rows that go before one that wants to end by `limit`, interpolated between its ends.
  [[nodiscard]] std::int32_t due_before(const LevelFifos::Line& line, TimeNs limit) const;
  // Returns how far a variant may be ahead of a waiting one on the same instance.
  [[nodiscard]] static TimeNs lead(const MultiLevelQueue& queue, const MultiLevelQueue::Held& waits);

  [[nodiscard]] Backlog backlog(const MultiLevelQueue& queue, std::int32_t first, std::int32_t home) const;
  [[nodiscard]] RequestHandle front_for(const MultiLevelQueue& queue, const Backlog& waiting, InstanceId id) const;
  [[nodiscard]] TimeNs finish_at_home(MultiLevelQueue& queue, const Backlog& waiting, std::int32_t length,
                                      TimeNs now) const;
  // By how much a request of a lower home must gain for an instance to take it before its own home's line.
  [[nodiscard]] static TimeNs least_gain(const MultiLevelQueue& queue, const Backlog& own, const Bundle& cost,
                                         std::int32_t length);

  const LevelFifos& lines_;
  const RequestSlab& requests_;
  const Shares& shares_;
  bool batching_;
  bool by_worth_;
};

}  // namespace arlo::dispatch
