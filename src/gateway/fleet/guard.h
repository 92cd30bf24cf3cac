// Guards of a pipeline's edges, and how the answer of an edge's head goes with the one before: of a deployment.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/fault.h"
#include "flow/cascade/spec.h"
#include "flow/pipeline/guard.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

// `from`: whose stages are there. The fault names what is wrong.
MaybeFault check_edge(const v1::Pipeline& from, const v1::PipelineEdge& edge, const FindModel& model,
                      const std::string& pipeline);

// Of edges that have been checked. `edge`: its number among those of the core; -1: an exit.
flow::pipeline::Guard guard_of(const v1::PipelineEdge& from, std::int32_t edge);
flow::Score score_of(const v1::PipelineEdge& edge);
std::shared_ptr<const FlowSpec::Prune> prune_of(const v1::Prune& from);

}  // namespace arlo::gateway
