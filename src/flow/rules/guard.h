// Decides which rows go on along an edge of a flow, or end by an exit, when a stage has answered them: by label, by
// confidence, by chance, or by whether going on pays. Pure; the chance is a hash of the row.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "flow/rules/judge.h"

namespace arlo::flow {

struct RowFacts {
  std::uint64_t seed = 0;  // with its number: for the soft rule
  std::uint64_t row = 0;
  std::int32_t length = 0;  // tokens, before anything was pruned
  // The client's limits for a cascade: its last stage, and its confidence in place of the rules; below 0: none.
  std::int32_t last = std::numeric_limits<std::int32_t>::max();
  double least = -1;
};

struct Guard {
  enum class Rule : std::uint8_t {
    kHard,   // of a score of at least `at_least` and under `below`
    kSoft,   // at and below c all; above, with probability 1 / (1 + exp(k ((score - c) / (1 - c) - 1/2))) (Tabi Eq. 4)
    kPrice,  // by what time costs now: an edge takes the rows that are better sent on, an exit those that are not
    kPlanned,  // the same by the plan
  };
  std::int32_t edge = -1;  // of pipeline::Spec::edges; -1: an exit
  Rule rule = Rule::kHard;
  double at_least = 0;
  ByLength below;  // the last also applies to longer rows; empty: no limit
  double c = 0;
  double k = 0;
  std::vector<std::vector<std::pair<double, double>>> gain = {};  // by variant of the stage: of going on, by the score
  std::vector<std::uint32_t> labels = {};                         // empty: any
  [[nodiscard]] bool follows_load() const { return rule >= Rule::kPrice; }
  [[nodiscard]] bool judges() const { return rule != Rule::kHard || at_least > 0 || !below.empty() || !labels.empty(); }
};

// Throws std::invalid_argument, naming the field, which begins with `name`.
void validate(const Guard& guard, const std::string& name);

// u in [0, 1) of a row at a stage (docs/flows.md): the same for the same seed on every machine.
double hash01(std::uint64_t seed, std::uint64_t row, std::int32_t stage);

// Returns the probability that a row with this score takes it, ignoring the load.
double chance(const Guard& guard, double score, std::int32_t length);
// Returns whether this row takes it at that stage.
bool takes(const Guard& guard, double score, const RowFacts& row, std::int32_t stage);
// Returns whether the score and the label pass; label -1: the answer cannot be judged.
bool holds(const Guard& guard, std::int32_t label, double score, const RowFacts& row, std::int32_t stage);

}  // namespace arlo::flow
