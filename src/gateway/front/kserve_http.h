// KServe's v2 protocol over HTTP with Triton's binary tensors: a request as a ModelInferRequest, and its answer. Pure.
#pragma once

#include <memory>
#include <string>

#include "gateway/front/api_task.h"

namespace arlo::gateway {

inline constexpr std::string_view kJsonSize = "Inference-Header-Content-Length";

std::unique_ptr<ApiTask> make_kserve_infer();  // POST /v2/models/M[/versions/V]/infer

// A message of the gRPC service as the protocol over HTTP writes it: the same fields, and numbers as numbers.
std::string written(const google::protobuf::Message& message);

}  // namespace arlo::gateway
