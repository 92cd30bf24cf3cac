// Edges of a pipeline, resolved once per deployment: which rows take them, how their head's answer mixes with the
// previous one, and the source of each input of the next stage.
#pragma once

#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

// Checks an edge and adds it to its tail. `head`: null for an exit. `core`: its index among the core's edges; -1: an
// exit. Throws std::invalid_argument.
void add_edge(const v1::PipelineEdge& from, FlowSpec::Stage& tail, const FlowSpec::Stage* head, std::int32_t core);

FlowSpec::Chunks chunks_of(const v1::Chunks& from);

}  // namespace arlo::gateway
