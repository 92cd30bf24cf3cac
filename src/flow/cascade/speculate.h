// Speculation: where there is room to spare, the last stage starts on a row beside the first one, and whichever decides
// first ends it. So a row that is not sure does not wait for two stages, one after the other. What was started for
// nothing cannot be called back, so at most half of the last stage's instances are ever given to this and all else
// together, and only for rows of a length of which most go on in any case. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace arlo::flow {

// The share of rows that end before the last stage, by length: of the last thousand or so of about as many tokens.
class ExitShares {
 public:
  void saw(std::int32_t length, bool ended_early) {
    auto& bin = bins_.at(bin_of(length));
    if (bin.rows >= kRemembered) {
      bin.rows /= 2;
      bin.early /= 2;
    }
    ++bin.rows;
    bin.early += ended_early ? 1 : 0;
  }
  // 1 where too few rows were seen to tell.
  [[nodiscard]] double of(std::int32_t length) const {
    const auto& bin = bins_.at(bin_of(length));
    return bin.rows < kEnough ? 1.0 : static_cast<double>(bin.early) / bin.rows;
  }

 private:
  static constexpr std::uint32_t kEnough = 32;
  static constexpr std::uint32_t kRemembered = 1024;

  struct Bin {
    std::uint32_t rows = 0, early = 0;
  };
  // A bin ends at each power of two.
  static std::size_t bin_of(std::int32_t length) {
    return static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(std::max(length, 1)) - 1));
  }
  std::array<Bin, 33> bins_{};
};

// Instances of the last stage that are in service.
struct LastStage {
  std::int32_t instances = 0;
  std::int32_t busy = 0;   // with rows of whatever stage or model
  bool idle_fits = false;  // one that is not takes the row
};

// Whether the last stage starts on a row beside the first one.
constexpr bool speculates(const LastStage& last, double exit_share) {
  return last.idle_fits && 2 * (last.busy + 1) <= last.instances && exit_share < 0.5;
}

}  // namespace arlo::flow
