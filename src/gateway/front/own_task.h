// POST / and /invocations, as TEI has them for its clients: what the model is for. Pure.
#pragma once

#include <memory>

#include "gateway/front/api_task.h"

namespace arlo::gateway {

// Documents ranked where the body has `query`, cosines where its `inputs` are source and sentences; otherwise labels of
// a classifier, and vectors of any other model.
std::unique_ptr<ApiTask> make_tei_own();

}  // namespace arlo::gateway
