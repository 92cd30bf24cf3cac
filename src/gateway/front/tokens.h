// What a model's tokenizer makes of texts, and what ids say, as TEI tells it; and what the model is. Pure.
#pragma once

#include <memory>

#include "gateway/front/api_task.h"

namespace arlo::gateway {

std::unique_ptr<ApiTask> make_tei_tokenize();  // POST /tokenize
std::unique_ptr<ApiTask> make_tei_decode();    // POST /decode
std::unique_ptr<ApiTask> make_tei_info();      // GET /info
std::unique_ptr<ApiTask> make_tei_sparse();    // POST /embed_sparse, which no model here answers

}  // namespace arlo::gateway
