// Models whose rows are tensors, not token ids: what is checked of them in a deployment.
#pragma once

#include <arlo/v1/admin.pb.h>

#include "base/fault.h"
#include "rewrite/spec.h"

namespace arlo::gateway {

inline constexpr std::uint32_t kMostChildren = 1U << 16;  // of a row, that a model may make at a time

// All inputs of the model are tensors: its rows have no token ids.
bool all_tensors(const v1::Model& model);

// Rows say themselves how long they are: a tensor's first dim is -1.
bool ragged(const v1::Model& model);

// There is a tensor of no fixed size: a ragged one, or BYTES.
bool varies(const v1::Model& model);

// Its inputs of ROLE_TENSOR, and what they ask of the others.
MaybeFault check_tensors(const v1::Model& model);

// Its tasks, and the input that chooses among them.
MaybeFault check_tasks(const v1::Model& model);

// Its outputs that are about children, and the one that counts them.
MaybeFault check_children(const v1::Model& model);

}  // namespace arlo::gateway
