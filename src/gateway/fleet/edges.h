// Edges of a pipeline, found once for a deployment: which rows take them, how the answer of their head goes with the
// one before, and where each input of the next stage comes from.
#pragma once

#include <string>

#include "base/fault.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

// `from`: whose stages are there. A fault names what is wrong; `where`: which pipeline.
MaybeFault check_edge(const v1::Pipeline& from, const v1::PipelineEdge& edge, const FindModel& model,
                      const std::string& where);

// Fills `to.expand` for an edge between two stages.
MaybeFault resolve(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const FlowSpec::Stage& head,
                   const std::string& where, FlowSpec::Edge& to);

}  // namespace arlo::gateway
