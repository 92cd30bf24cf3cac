// Every kind of request of the HTTP API that asks a model; routes.toml says under which path. Pure.
#pragma once

#include <memory>
#include <string>

#include "gateway/front/api/task.h"

namespace arlo::gateway {

using NewTask = std::unique_ptr<ApiTask> (*)();

// Embeddings of texts, those of each token, and how alike texts are.
std::unique_ptr<ApiTask> make_openai_embeddings();
std::unique_ptr<ApiTask> make_cohere_embed_v1();
std::unique_ptr<ApiTask> make_cohere_embed_v2();
std::unique_ptr<ApiTask> make_tei_embed();
std::unique_ptr<ApiTask> make_tei_embed_all();
std::unique_ptr<ApiTask> make_tei_similarity();

// Labels of texts and pairs, their scores, and documents ranked for a query. Either: TEI's where it has `texts`,
// otherwise Cohere's, Jina's and vLLM's in one, which are the same in both versions.
std::unique_ptr<ApiTask> make_tei_predict();
std::unique_ptr<ApiTask> make_classify();
std::unique_ptr<ApiTask> make_score();
std::unique_ptr<ApiTask> make_either_rerank();
std::unique_ptr<ApiTask> make_rerank_v1();
std::unique_ptr<ApiTask> make_rerank_v2();

// What the model is for, by the fields of the body; and several of these in one.
std::unique_ptr<ApiTask> make_tei_own();
std::unique_ptr<ApiTask> make_tei_vertex();

// Answered without a call.
std::unique_ptr<ApiTask> make_tei_tokenize();
std::unique_ptr<ApiTask> make_tei_decode();
std::unique_ptr<ApiTask> make_tei_info();
std::unique_ptr<ApiTask> make_tei_sparse();

// KServe's v2 protocol over HTTP, with Triton's binary tensors.
std::unique_ptr<ApiTask> make_kserve_infer();
inline constexpr std::string_view kJsonSize = "Inference-Header-Content-Length";
// A message of the gRPC service as that protocol writes it: the same fields, and numbers as numbers.
std::string written(const google::protobuf::Message& message);

}  // namespace arlo::gateway
