// Models whose rows are tensors, not token ids: their checks in a deployment.
#pragma once

#include <arlo/v1/admin.pb.h>

#include "base/fault.h"
#include "rewrite/spec.h"

namespace arlo::gateway {

inline constexpr std::uint32_t kMostChildren = 1U << 16;  // of a row, that a model may make at a time

// True when all inputs of the model are tensors: its rows have no token ids.
bool all_tensors(const v1::Model& model);

// True when rows carry their length: a tensor's first dim is -1.
bool ragged(const v1::Model& model);

// True when there is a tensor of no fixed size: a ragged one, or BYTES.
bool varies(const v1::Model& model);

// Checks its inputs of ROLE_TENSOR, and their requirements on the others.
MaybeFault check_tensors(const v1::Model& model);

// Checks its tasks, and the input that chooses among them.
MaybeFault check_tasks(const v1::Model& model);

// Checks its outputs of children, and the one that counts them.
MaybeFault check_children(const v1::Model& model);

}  // namespace arlo::gateway
