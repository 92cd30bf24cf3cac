// Models whose rows are tensors, not token ids: what is checked of them in a deployment.
#pragma once

#include <arlo/v1/admin.pb.h>

#include "base/fault.h"
#include "rewrite/spec.h"

namespace arlo::gateway {

inline constexpr std::uint32_t kMostChildren = 1U << 16;  // of a row, that a model may make at a time

bool is_tensor(const v1::Model& model);

// Of a model with an input of ROLE_TENSOR: that all are, and can be written.
MaybeFault check_tensors(const v1::Model& model);

// Its outputs that are about children, and the one that counts them.
MaybeFault check_children(const v1::Model& model);

// Of an input of ROLE_TENSOR that was checked.
InputSpec tensor_spec(const v1::InputTensor& from);

}  // namespace arlo::gateway
