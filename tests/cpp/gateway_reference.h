// What the gateway must make of a request and of its workers' answers, said again with protobuf's own classes: slow,
// plain and written from the protocol, so that the gateway's in-place code can be checked against it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kserve.h"
#include "rewrite/model.h"
#include "rewrite/request.h"
#include "rewrite/response.h"

namespace arlo::gateway::reference {

using Request = inference::ModelInferRequest;
using Response = inference::ModelInferResponse;

// The length of each row; empty when the request must be refused.
std::optional<std::vector<std::int32_t>> lengths(const Request& request, const ModelSpec& model,
                                                 const RequestLimits& limits);

// The request of one row to `runtime`, of a request that has lengths().
Request row(const Request& request, const ModelSpec& model, std::size_t index, std::int32_t length,
            const RuntimeInfo& runtime);

// The answer to the client; empty when a worker's answer is unusable. `padded`: tokens each row was sent with.
std::optional<Response> merge(const std::vector<Response>& workers, const Request& request, const ModelSpec& model,
                              const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& padded,
                              const Timing& timing, bool streamed);

// The elements of a BYTES tensor in raw form; empty when it is cut short.
std::optional<std::size_t> count_bytes_elements(std::string_view raw);

// The messages agree, unknown fields included; else where they differ.
std::string difference(const google::protobuf::Message& expected, const google::protobuf::Message& actual);

// Runs `body` through parse, bind, and WorkerRequest for every runtime that fits, and compares with the above:
// - what the gateway accepts and protobuf parses must be accepted above too, with the same lengths and rows;
// - a row that is sent on must parse, whatever came in: a worker that gets garbage would be taken for broken;
// - what protobuf parses must, once protobuf wrote it anew, be accepted exactly when it is accepted above.
// The gateway may refuse more of the wire format than protobuf: groups, known fields with another wire type, varints
// above 64 bits, empty fields of typed contents. It may accept names that are not UTF-8 where it does not send them on.
// Returns what is wrong, empty when nothing is. Rows are written into memory of just their size.
std::string check_request(const std::string& body, const ModelSpec& model, const RequestLimits& limits,
                          const std::vector<RuntimeInfo>& runtimes);

// Takes `answer` as what a worker of `runtime` said to every row of the valid request `body`, merges, and compares.
std::string check_response(const std::string& body, const std::string& answer, const ModelSpec& model,
                           const RequestLimits& limits, const RuntimeInfo& runtime);

}  // namespace arlo::gateway::reference
