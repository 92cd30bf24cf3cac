// Checks of what the caller configures. They throw std::invalid_argument naming the field and its range.
#pragma once

#include "dispatch/scheduler.h"

namespace arlo::dispatch {

void validate(const Options& options);
void validate(const RuntimeSpec& spec);  // all but the latency points, which CostModel checks

}  // namespace arlo::dispatch
