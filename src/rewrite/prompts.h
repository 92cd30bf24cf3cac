// What goes before a text: a prompt of the model, by its name or by what the text is.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "base/fault.h"
#include "rewrite/spec.h"

namespace arlo::gateway {

// Names of prompts that a model may have for texts of this type, the best first; none: there is no such type.
std::span<const std::string_view> prompts_for(std::string_view input_type);
// INVALID_ARGUMENT: there is no such type. Empty: none is said.
MaybeFault check_input_type(std::string_view input_type);
// What the prompt of that name says, an empty name meaning none; where no name is given, the first one for the type
// that the model has, or else its default. INVALID_ARGUMENT: the model has none by that name.
MaybeFault find_prompt(const ModelSpec& model, std::optional<std::string_view> name, std::string_view input_type,
                       std::string_view* out);

}  // namespace arlo::gateway
