// The client's answer as gRPC bytes.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <string>

#include "gateway/call.h"
#include "gateway/fault.h"

namespace arlo::gateway {

// The answer of a call whose rows have all ended: a ModelInferResponse, or the fault of its first failed row. Streamed
// answers are wrapped in a ModelStreamInferResponse.
MaybeFault encode_answer(const Call& call, bool streamed, grpc::ByteBuffer* out);

// A ModelStreamInferResponse that says "[CODE] message" and names the request by its id.
grpc::ByteBuffer encode_stream_fault(const Fault& fault, std::string_view id);

const char* code_name(Code code);

// The one place where faults become gRPC statuses.
grpc::Status to_status(const Fault& fault);

}  // namespace arlo::gateway
