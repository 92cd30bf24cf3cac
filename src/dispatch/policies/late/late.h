// late: late binding (ours). See late.cc.
#pragma once

#include <array>
#include <tuple>

#include "dispatch/rule.h"
#include "dispatch/state.h"

namespace arlo::dispatch {

// The requests that wait for one home level: the FIFOs of the levels `first` to `home`.
struct Backlog {
  std::int32_t first;
  std::int32_t home;
  std::int32_t count;
  std::int64_t tokens;
  [[nodiscard]] std::int32_t mean() const { return static_cast<std::int32_t>(tokens / count); }
};

class Late final : public Rule {
 public:
  explicit Late(State& state) : s_(state) {}

  [[nodiscard]] Key key(const Instance& x) const override;

  // Returns where the first request of the home of `level` should start now; queue.groups() when it should wait. It has
  // this length, and is counted in the FIFOs unless they are empty.
  [[nodiscard]] GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t length, TimeNs now) override;

  [[nodiscard]] std::unique_ptr<Binding> make_binding(const Parts& parts) override;

  // The waiting request that an instance with room should start now; kNone when it should start none.
  [[nodiscard]] RequestHandle next_for(InstanceId id, TimeNs now) const;

  // Returns when a request would finish at this home if its turn were next, with so many in its line.
  [[nodiscard]] TimeNs finish_of_turn(std::int32_t home, std::int32_t length, std::int32_t in_line, TimeNs now) const;
  // Returns when a request that lines up for this home with this rank would finish: there, or with the help of longer
  // levels. The search stops at the first level that is in time.
  [[nodiscard]] TimeNs finish_in_line(std::int32_t home, std::int32_t length, Rank rank, TimeNs limit,
                                      TimeNs now) const;
  // Returns the time until an instance of this home is free, plus all work that waits for these instances, of any
  // variant, divided by their number.
  [[nodiscard]] TimeNs wait_of_all(std::int32_t home, TimeNs now) const;

 private:
  // The request of a variant that an instance may start next.
  struct Turn {
    RequestHandle next = kNone;
    std::int32_t passed = 0;  // Instance::passed when it starts
  };
  [[nodiscard]] Turn turn_of(const Held& held, InstanceId id, TimeNs now) const;
  // The variant among those that an instance holds several of: of `turns`, by their order in held().
  [[nodiscard]] std::size_t first_of(const Instance& x, const std::array<Turn, kVariants>& turns, TimeNs now) const;
  // The order of batches, by the rows that are next in their lines; the least goes first.
  using Order = std::tuple<bool, double, Rank>;
  // Batching::kDeadline. By what a row of the batch costs: as a multiple of what it costs in a full one, or in time.
  enum class Cost : std::uint8_t { kUnfilled, kTime };
  [[nodiscard]] Order by_worth(const Instance& x, const Held& held, RequestHandle next, Cost by, TimeNs now) const;
  // The row whose batch goes first, of the lines from `lowest` that a bundle serves.
  [[nodiscard]] RequestHandle front_by_worth(const Held& held, std::int32_t lowest, InstanceId id, TimeNs now) const;
  // Returns how long other variants occupy the instances of a variant until the work before a row that wants to end by
  // `limit`, `own` ns of all instances, is done.
  [[nodiscard]] TimeNs others_before(std::int32_t home, TimeNs own, TimeNs limit) const;
  [[nodiscard]] TimeNs finish_at_home(const Backlog& waiting, std::int32_t length, TimeNs now) const;
  [[nodiscard]] bool worth_decides() const { return s_.options.batching == Batching::kDeadline; }
  template <typename Look>
  void look_at_home(std::int32_t home, TimeNs now, Look look) const;

  State& s_;
};

}  // namespace arlo::dispatch
