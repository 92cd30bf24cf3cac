// Which edges a row takes when a stage of a pipeline has answered it: those whose guards hold, and, where a guard
// follows the load, that pay (Pipeline::pays). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/pipeline/pipeline.h"
#include "flow/rules/guard.h"

namespace arlo::flow::pipeline {

// Into `taken`: numbers of `guards`, none of an exit; empty: the row ends there. `first`: one at most. `label`: that
// was said; -1: nothing that can be judged. `scores`: [guards]. `visit`: of the core, a row that `variant` of its stage
// has answered.
void take_edges(std::span<const Guard> guards, bool first, std::size_t variant, std::int32_t label,
                std::span<const double> scores, const RowFacts& row, const Pipeline& core, VisitId visit,
                std::vector<std::int32_t>& taken);

}  // namespace arlo::flow::pipeline
