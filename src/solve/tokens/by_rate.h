// OTAS, Algorithm 3's f: the token count for a rate, by a table as the paper's Table I.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace arlo::solve::tokens {

// by_rate: (rate, count up to it, exclusive), ascending. Beyond them all: 0, the fewest tokens.
inline std::size_t CountForRate(std::span<const std::pair<double, std::size_t>> by_rate, double rate) {
  for (const auto& [below, count] : by_rate) {
    if (rate < below) return count;
  }
  return 0;
}

}  // namespace arlo::solve::tokens
