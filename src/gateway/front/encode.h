// Encodes the client's answer as gRPC bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/fault.h"
#include "gateway/desk/call.h"
#include "gateway/desk/journey.h"
#include "transport/server_session.h"

namespace arlo::gateway {

// Predicted time of an answer, ms, for a request refused because it could not meet its deadline. Trailing metadata of a
// call, a parameter on a stream.
inline constexpr const char* kPredictedMs = "arlo-predicted-ms";
// Trailing metadata "no" of a call: a retry is useless, although its code says that resources are exhausted.
inline constexpr const char* kRetry = "arlo-retry";

// Encodes the answer of a call whose rows have all ended: a ModelInferResponse, or the call's fault, or a fault for an
// answer above `max_bytes`. Streamed answers are wrapped in a ModelStreamInferResponse. Releases the workers' answers.
// On the lane's thread, where `then` gets the answer: at once, or later for a large answer, which another thread
// writes. The call must live until then.
void encode_answer(Call& call, bool streamed, std::uint64_t max_bytes,
                   std::function<void(const MaybeFault&, std::string)> then);

// Encodes the answer so far of a row that goes on, on a stream; `partial` must outlive the result.
MaybeFault encode_partial(const Call& call, PartialAnswer& partial, std::uint64_t max_bytes, std::string* out);

// A ModelStreamInferResponse with "[CODE] message" that names the request by its id, unless that is not UTF-8.
std::string encode_stream_fault(const Fault& fault, std::string_view id);

Fault answer_too_large(std::uint64_t bytes, std::uint64_t max_bytes);

const char* code_name(Code code);

// Ends a call with a fault.
void answer_fault(transport::ServerCall& call, const Fault& fault);

}  // namespace arlo::gateway
