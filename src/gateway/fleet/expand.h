// What an edge of a pipeline makes of a row, found once for a deployment: where each input of the next stage comes
// from.
#pragma once

#include <string>

#include "base/fault.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

// Fills `to.expand` for an edge between two stages. A fault says what does not fit; `where`: which pipeline.
MaybeFault resolve(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const FlowSpec::Stage& head,
                   const std::string& where, FlowSpec::Edge& to);

}  // namespace arlo::gateway
