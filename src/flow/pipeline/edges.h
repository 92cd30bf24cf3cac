// Chooses the edges of a row that a pipeline's stage has answered: those whose guards hold and, where a guard follows
// the load, that pay (Pipeline::pays). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/pipeline/pipeline.h"
#include "flow/rules/guard.h"

namespace arlo::flow::pipeline {

// Fills `taken` with numbers of `guards`, exits excluded; empty: the row ends there. `first`: at most one. `label`: of
// the answer; -1: the answer cannot be judged. `scores`: [guards]. `visit`: the core's, of a row that `variant` of its
// stage has answered.
void take_edges(std::span<const Guard> guards, bool first, std::size_t variant, std::int32_t label,
                std::span<const double> scores, const RowFacts& row, const Pipeline& core, VisitId visit,
                std::vector<std::int32_t>& taken);

}  // namespace arlo::flow::pipeline
