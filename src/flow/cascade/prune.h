// Which tokens of a row go on to the next stage (Tabi sections 2.3 and 4.2; to a level: ours). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/cascade/spec.h"

namespace arlo::flow {

// Places of the tokens that are kept, ascending, into `kept`; empty: all of them go. `ids`, `importance`: [tokens].
// `levels`: maximum lengths of what may run the row next, ascending; empty: time goes by tokens. Words are kept or left
// whole, a special token and a word of `keep` are always kept, and so is the weightiest word of each segment (what lies
// between special tokens).
void prune(const PruneSpec& spec, const Vocabulary& vocabulary, std::span<const std::int64_t> ids,
           std::span<const float> importance, std::span<const std::int32_t> levels, std::vector<std::uint32_t>& kept);

}  // namespace arlo::flow
