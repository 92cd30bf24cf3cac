// POST /, /invocations and /vertex, as TEI has them for its clients: what the model is for. Pure.
#pragma once

#include <memory>

#include "gateway/front/api_task.h"

namespace arlo::gateway {

// Documents ranked where the body has `query`, cosines where its `inputs` are source and sentences; otherwise labels of
// a classifier, and vectors of any other model.
std::unique_ptr<ApiTask> make_tei_own();
// POST /vertex: {"instances":[..]}, each a body of those above; all are asked in one call, so they must be of one kind.
std::unique_ptr<ApiTask> make_tei_vertex();

}  // namespace arlo::gateway
