// Turns a row into children on an edge of its pipeline: pieces of its token ids, or slices of its stage's answer. The
// result is views into the worker's answer and the client's request, which the source keeps; nothing is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fault.h"
#include "gateway/desk/flow_call.h"

namespace arlo::gateway {

// `from`, `child`: the row before. `row`: the row with its answer, by this variant. `to`: receives the children,
// possibly none (count 0). Returns the number of bytes to keep, without those already kept elsewhere. A fault: the
// answer does not suit the edge.
MaybeFault expand(const FlowSpec::Edge& edge, const FlowSpec::Variant& variant, std::size_t number,
                  const FlowSource& from, std::size_t child, const Row& row, FlowSource& to, std::uint64_t* bytes);

// `parts`: the joining rows, in output order. `to`: receives the row of `model` that they become: steps of inputs
// concatenated, texts one per line. Returns as expand() does; `bytes` grows by the newly written bytes.
MaybeFault join(const std::vector<const FlowSource*>& parts, const ModelSpec& model, FlowSource& to,
                std::uint64_t* bytes);

// Fills `to` with the client's row as the source of its roots. `call` has the request.
void enter_with(const Call& call, std::size_t row, FlowSource& to, std::uint64_t* bytes);

}  // namespace arlo::gateway
