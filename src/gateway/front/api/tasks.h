// Every kind of HTTP API request that asks a model; routes.toml maps paths to them. Pure.
#pragma once

#include <memory>
#include <string>

#include "gateway/front/api/task.h"

namespace arlo::gateway {

using NewTask = std::unique_ptr<ApiTask> (*)();

// Embeddings of texts and of tokens, and similarities of texts.
std::unique_ptr<ApiTask> make_openai_embeddings();
std::unique_ptr<ApiTask> make_cohere_embed_v1();
std::unique_ptr<ApiTask> make_cohere_embed_v2();
std::unique_ptr<ApiTask> make_tei_embed();
std::unique_ptr<ApiTask> make_tei_embed_all();
std::unique_ptr<ApiTask> make_tei_similarity();

// Labels of texts and pairs, their scores, and documents ranked for a query. Either: TEI's if it has `texts`, otherwise
// the shared form of Cohere, Jina and vLLM, which is the same in both versions.
std::unique_ptr<ApiTask> make_tei_predict();
std::unique_ptr<ApiTask> make_classify();
std::unique_ptr<ApiTask> make_score();
std::unique_ptr<ApiTask> make_either_rerank();
std::unique_ptr<ApiTask> make_rerank_v1();
std::unique_ptr<ApiTask> make_rerank_v2();

// Chosen by the model and the fields of the body; and several of these in one.
std::unique_ptr<ApiTask> make_tei_own();
std::unique_ptr<ApiTask> make_tei_vertex();

// Answered without a call to a worker.
std::unique_ptr<ApiTask> make_tei_tokenize();
std::unique_ptr<ApiTask> make_tei_decode();
std::unique_ptr<ApiTask> make_tei_info();
std::unique_ptr<ApiTask> make_tei_sparse();

// KServe's v2 protocol over HTTP, with Triton's binary tensors.
std::unique_ptr<ApiTask> make_kserve_infer();
inline constexpr std::string_view kJsonSize = "Inference-Header-Content-Length";
// Writes a message of the gRPC service in that protocol's JSON: the same fields, with 64-bit numbers as numbers.
std::string written(const google::protobuf::Message& message);

}  // namespace arlo::gateway
