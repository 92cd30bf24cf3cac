// Classifiers and rerankers: labels of texts and pairs as TEI asks for them, and documents ranked for a query as TEI,
// Cohere, Jina and vLLM do. Pure.
#pragma once

#include <memory>

#include "gateway/front/api_task.h"

namespace arlo::gateway {

std::unique_ptr<ApiTask> make_tei_predict();  // POST /predict
// POST /rerank: TEI's where it has `texts`, otherwise as those that follow.
std::unique_ptr<ApiTask> make_either_rerank();
std::unique_ptr<ApiTask> make_rerank_v1();  // POST /v1/rerank, Cohere's, Jina's and vLLM's in one
std::unique_ptr<ApiTask> make_rerank_v2();  // POST /v2/rerank, which says no document again unless asked

}  // namespace arlo::gateway
