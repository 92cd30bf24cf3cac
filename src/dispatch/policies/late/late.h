// late: late binding (ours). See late.cc.
#pragma once

#include "dispatch/level_fifos.h"
#include "dispatch/policies/rule.h"

namespace arlo::dispatch {

class Late final : public Rule {
 public:
  // `batching`: batches are formed here.
  Late(const LevelFifos& lines, const RequestSlab& requests, bool batching)
      : lines_(lines), requests_(requests), batching_(batching) {}

  [[nodiscard]] Key key(const Instance& x) const override;

  // Where the first request of the home of `level` (it has this length, and is counted in the FIFOs unless they are
  // empty) should start now; queue.groups() when it should wait.
  [[nodiscard]] GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t length, TimeNs now) override;

  [[nodiscard]] std::unique_ptr<Binding> make_binding(const Parts& parts) override;

  // The waiting request that an instance with room should start now; kNone when it should start none.
  [[nodiscard]] RequestHandle next_for(MultiLevelQueue& queue, InstanceId id, TimeNs now) const;

  // When a request would finish at this home if its turn were next, with so many in its line.
  [[nodiscard]] TimeNs finish_of_turn(MultiLevelQueue& queue, std::int32_t home, std::int32_t length,
                                      std::int32_t in_line, TimeNs now) const;
  // When one that lines up for this home with this rank would finish: there, or by the help of longer levels. No longer
  // level is looked at when one is found that is in time.
  [[nodiscard]] TimeNs finish_in_line(MultiLevelQueue& queue, std::int32_t home, std::int32_t length, Rank rank,
                                      TimeNs limit, TimeNs now) const;

 private:
  // What waits for one home level: the FIFOs of the levels `first` to `home`.
  struct Backlog {
    std::int32_t first;
    std::int32_t home;
    std::int32_t count;
    std::int64_t tokens;
  };
  [[nodiscard]] Backlog backlog(std::int32_t first, std::int32_t home) const;
  [[nodiscard]] RequestHandle front_for(const MultiLevelQueue& queue, const Backlog& waiting, InstanceId id) const;
  [[nodiscard]] TimeNs finish_at_home(MultiLevelQueue& queue, const Backlog& waiting, std::int32_t length,
                                      TimeNs now) const;
  // By how much a request of a lower home must gain for an instance to take it before its own home's line.
  [[nodiscard]] static TimeNs least_gain(const MultiLevelQueue& queue, const Backlog& own, const Bundle& cost,
                                         std::int32_t length);

  const LevelFifos& lines_;
  const RequestSlab& requests_;
  bool batching_;
};

}  // namespace arlo::dispatch
