// How variants share the instances that hold several of them.
//
// A turn goes to the variant whose row is due first, or whose batch is worth most; no instance is held in reserve. That
// alone would let a flood of one variant, whose first rows are always about to be late, keep the others out. So the
// time that each one gets is counted, by its share, and one that is more than a lead ahead of another one that waits
// lets it go first (start-time fair queueing, in any order within the lead).
#pragma once

#include <algorithm>
#include <array>

#include "dispatch/types.h"

namespace arlo::dispatch {

class Shares {
 public:
  Shares() { share_.fill(1); }

  void set(VariantId variant, double share) { share_[variant] = share; }

  // Returns the time that it has got, by its share.
  [[nodiscard]] TimeNs got(VariantId variant) const { return got_[variant]; }
  // It wants time again: it gets no credit for the time when it wanted none.
  void begins(VariantId variant) { got_[variant] = std::max(got_[variant], clock_); }
  // An instance begins to work on it for `time`.
  void started(VariantId variant, TimeNs time) {
    clock_ = got_[variant];
    got_[variant] += static_cast<TimeNs>(static_cast<double>(time) / share_[variant]);
  }

  // Returns the most instance time that `other` gets before work of `time` of `variant` is done, when it may lead by
  // `lead`. `waits`: rows of `variant` already wait.
  [[nodiscard]] TimeNs before(VariantId other, VariantId variant, bool waits, TimeNs time, TimeNs lead) const {
    const TimeNs behind = (waits ? got_[variant] : std::max(got_[variant], clock_)) - got_[other];
    const auto needs = static_cast<TimeNs>(static_cast<double>(time) / share_[variant]);
    return static_cast<TimeNs>(static_cast<double>(std::max<TimeNs>(behind + needs + lead, 0)) * share_[other]);
  }

 private:
  std::array<TimeNs, kVariants> got_{};
  std::array<double, kVariants> share_;
  TimeNs clock_ = 0;  // `got` of the variant that started last, before it did
};

}  // namespace arlo::dispatch
