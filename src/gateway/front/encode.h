// The client's answer as gRPC bytes.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <string_view>

#include "gateway/desk/call.h"
#include "base/fault.h"

namespace arlo::gateway {

// The answer of a call whose rows have all ended: a ModelInferResponse, or the fault of its first failed row, or of an
// answer above `max_bytes`. Streamed answers are wrapped in a ModelStreamInferResponse.
MaybeFault encode_answer(const Call& call, bool streamed, std::uint64_t max_bytes, grpc::ByteBuffer* out);

// A ModelStreamInferResponse that says "[CODE] message" and names the request by its id, unless that is not UTF-8.
grpc::ByteBuffer encode_stream_fault(const Fault& fault, std::string_view id);

const char* code_name(Code code);

// The one place where faults become gRPC statuses.
grpc::Status to_status(const Fault& fault);

}  // namespace arlo::gateway
