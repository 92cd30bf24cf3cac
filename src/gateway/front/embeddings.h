// Embeddings of texts: as OpenAI, Cohere and TEI ask for them, those of each token, and how alike texts are. Pure.
#pragma once

#include <memory>

#include "gateway/front/api_task.h"

namespace arlo::gateway {

std::unique_ptr<ApiTask> make_openai_embeddings();  // POST /v1/embeddings
std::unique_ptr<ApiTask> make_cohere_embed_v1();    // POST /v1/embed
std::unique_ptr<ApiTask> make_cohere_embed_v2();    // POST /v2/embed
std::unique_ptr<ApiTask> make_tei_embed();          // POST /embed
std::unique_ptr<ApiTask> make_tei_embed_all();      // POST /embed_all
std::unique_ptr<ApiTask> make_tei_similarity();     // POST /similarity

}  // namespace arlo::gateway
