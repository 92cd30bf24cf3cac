// Chooses the prompt that goes before a text, by the prompt's name or by the type of the text.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "base/fault.h"
#include "rewrite/spec.h"

namespace arlo::gateway {

// Names of prompts that a model may have for texts of this type, the best first; none: there is no such type.
std::span<const std::string_view> prompts_for(std::string_view input_type);
// INVALID_ARGUMENT: there is no such type. Empty: not given.
MaybeFault check_input_type(std::string_view input_type);
// Finds the text of the prompt of that name (an empty name: none); without a name, the model's first prompt for the
// type, or else its default. INVALID_ARGUMENT: the model has none by that name.
MaybeFault find_prompt(const ModelSpec& model, std::optional<std::string_view> name, std::string_view input_type,
                       std::string_view* out);

}  // namespace arlo::gateway
