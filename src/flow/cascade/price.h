// The price of going on: while rows run out of time at later stages, the rules of a higher price send fewer rows there.
// It rises fast and falls slowly. Pure: the owner looks every kLook.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace arlo::flow {

class Price {
 public:
  static constexpr TimeNs kLook = 100'000'000;

  [[nodiscard]] std::int32_t now() const { return now_; }
  // A row was to go on; `most`: the highest price of its rules.
  void wanted(std::int32_t most) {
    ++wanted_;
    most_ = most;
  }
  // One that was, and for which there was no time.
  void short_of_time() { ++short_; }

  void look() {
    if (short_ > 0 && short_ * kShare >= wanted_) {
      now_ = std::min(now_ + kUp, most_);
      calm_ = 0;
    } else if (now_ > 0 && ++calm_ >= kCalm) {
      --now_;
      calm_ = 0;
    }
    wanted_ = short_ = 0;
  }

 private:
  static constexpr std::uint64_t kShare = 50;  // one row in so many without time is pressure
  static constexpr std::int32_t kUp = 2;       // steps at a time
  static constexpr std::uint32_t kCalm = 3;    // looks without pressure before it falls by one

  std::int32_t now_ = 0;
  std::int32_t most_ = 0;
  std::uint32_t calm_ = 0;
  std::uint64_t wanted_ = 0;
  std::uint64_t short_ = 0;
};

}  // namespace arlo::flow
