// What a row becomes on an edge of its pipeline: pieces of its token ids, or what its stage answered, cut into
// children. Views into the worker's answer and into the client's request, which the source keeps; nothing is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fault.h"
#include "gateway/desk/flow_call.h"

namespace arlo::gateway {

// `from`, `child`: what the row was. `row`: with its answer, of the variant. `to`: filled with what it becomes, which
// may be nothing (count 0). Returns the bytes that it takes to keep, those of views that others keep left out. A fault:
// the answer is not what the edge needs.
MaybeFault expand(const FlowSpec::Edge& edge, const FlowSpec::Variant& variant, std::size_t number,
                  const FlowSource& from, std::size_t child, const Row& row, FlowSource& to, std::uint64_t* bytes);

// `parts`: what joins, in the order in which it goes on. `to`: filled with the row of `model` that they become: steps
// of inputs one behind the other, texts by a line each. Returns as expand() does; `bytes` grows by what is written
// anew.
MaybeFault join(const std::vector<const FlowSource*>& parts, const ModelSpec& model, FlowSource& to,
                std::uint64_t* bytes);

// The client's row as the source of what enters. `call` has its own request.
void enter_with(const Call& call, std::size_t row, FlowSource& to, std::uint64_t* bytes);

}  // namespace arlo::gateway
