#include "flow/rules/guard.h"

#include <algorithm>
#include <cmath>

namespace arlo::flow {
namespace {

// splitmix64 (Steele, Lea, Flood: OOPSLA'14).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

double at_length(const ByLength& values, std::int32_t length) {
  for (const auto& [up_to, value] : values) {
    if (length <= up_to) return value;
  }
  return values.back().second;
}

}  // namespace

double hash01(std::uint64_t seed, std::uint64_t row, std::int32_t stage) {
  const std::uint64_t h = mix(mix(seed) ^ (8 * row + static_cast<std::uint64_t>(stage)));
  return static_cast<double>(h >> 11U) * 0x1p-53;
}

double chance(const Guard& guard, double score, std::int32_t length) {
  if (guard.follows_load()) return 1;
  if (guard.rule == Guard::Rule::kHard) {
    return score >= guard.at_least && (guard.below.empty() || score < at_length(guard.below, length)) ? 1 : 0;
  }
  if (score <= guard.c || guard.c >= 1) return 1;
  const double norm = (score - guard.c) / (1 - guard.c) - 0.5;
  return 1 / (1 + std::exp(guard.k * norm));
}

bool takes(const Guard& guard, double score, const RowFacts& row, std::int32_t stage) {
  const double p = chance(guard, score, row.length);
  if (p >= 1 || p <= 0) return p >= 1;
  return hash01(row.seed, row.row, stage) < p;
}

bool holds(const Guard& guard, std::int32_t label, double score, const RowFacts& row, std::int32_t stage) {
  if (!guard.judges()) return true;
  const auto& labels = guard.labels;
  const bool named =
      labels.empty() || std::find(labels.begin(), labels.end(), static_cast<std::uint32_t>(label)) != labels.end();
  return label >= 0 && named && takes(guard, score, row, stage);
}

}  // namespace arlo::flow
