// Edges of a pipeline, resolved once per deployment: which rows take them, how their head's answer mixes with the
// previous one, and the source of each input of the next stage.
#pragma once

#include <string>

#include "base/fault.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

// Checks an edge. `from`: the pipeline with its stages. A fault names the error; `where`: the pipeline's name.
MaybeFault check_edge(const v1::Pipeline& from, const v1::PipelineEdge& edge, const FindModel& model,
                      const std::string& where);

// Fills `to.expand` for an edge between two stages.
MaybeFault resolve(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const FlowSpec::Stage& head,
                   const std::string& where, FlowSpec::Edge& to);

}  // namespace arlo::gateway
