// The client's answer as gRPC bytes.
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

// Of a request that is refused because its deadline could not be met: how long an answer would have taken, ms. Trailing
// metadata of a call, a parameter on a stream.
inline constexpr const char* kPredictedMs = "arlo-predicted-ms";
// Trailing metadata "no" of a call: it is too much at any time, though its code says that resources are exhausted.
inline constexpr const char* kRetry = "arlo-retry";

// The answer of a call whose rows have all ended: a ModelInferResponse, or the call's fault, or that of an answer above
// `max_bytes`. Streamed answers are wrapped in a ModelStreamInferResponse. The workers' answers are let go. On the
// lane's thread, where `then` gets the answer: at once, or later for a large one, which another thread writes. The call
// has to last until then.
void encode_answer(Call& call, bool streamed, std::uint64_t max_bytes,
                   std::function<void(const MaybeFault&, std::string)> then);

// Of a row that goes on, on a stream; `partial` must outlive what is made of it.
MaybeFault encode_partial(const Call& call, PartialAnswer& partial, std::uint64_t max_bytes, std::string* out);

// A ModelStreamInferResponse that says "[CODE] message" and names the request by its id, unless that is not UTF-8.
std::string encode_stream_fault(const Fault& fault, std::string_view id);

Fault answer_too_large(std::uint64_t bytes, std::uint64_t max_bytes);

const char* code_name(Code code);

// Ends a call with a fault.
void answer_fault(transport::ServerCall& call, const Fault& fault);

}  // namespace arlo::gateway
