// Scores of pairs and labels of texts as vLLM has them, and labels as infinity does. Pure.
#pragma once

#include <memory>

#include "gateway/front/api_task.h"

namespace arlo::gateway {

std::unique_ptr<ApiTask> make_score();     // POST /score, /v1/score
std::unique_ptr<ApiTask> make_classify();  // POST /classify: in infinity's form where the body has its `raw_scores`

}  // namespace arlo::gateway
