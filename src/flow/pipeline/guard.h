// Which edges a row takes when a stage has answered it: by its label, by how sure the answer is, and, where a threshold
// follows the load, by whether going on pays (Pipeline::pays). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "flow/pipeline/pipeline.h"

namespace arlo::flow::pipeline {

// Of an edge, or an exit, of a stage.
struct Guard {
  enum class Threshold : std::uint8_t {
    kFixed,    // at_least, below
    kPrice,    // by what time costs now: an edge takes the rows that are better sent on, an exit those that are not
    kPlanned,  // the same by the plan
  };
  std::int32_t edge = -1;  // of Spec::edges; -1: an exit
  Threshold threshold = Threshold::kFixed;
  double at_least = 0;                                       // of the score
  double below = 0;                                          // 0: no limit
  std::vector<std::vector<std::pair<double, double>>> gain;  // by variant of the stage: of going on, by the score
  std::vector<std::uint32_t> labels = {};                    // empty: any
  [[nodiscard]] bool follows_load() const { return threshold != Threshold::kFixed; }
  [[nodiscard]] bool judges() const { return follows_load() || at_least > 0 || below > 0 || !labels.empty(); }
};

// Into `taken`: numbers of `guards`, none of an exit; empty: the row ends there. `first`: one at most. `label`: that
// was said; -1: nothing that can be judged. `scores`: [guards]. `visit`: of the core, a row that `variant` of its stage
// has answered.
void take_edges(std::span<const Guard> guards, bool first, std::size_t variant, std::int32_t label,
                std::span<const double> scores, const Pipeline& core, VisitId visit, std::vector<std::int32_t>& taken);

}  // namespace arlo::flow::pipeline
