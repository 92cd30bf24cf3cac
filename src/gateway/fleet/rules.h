// Converts a deployment's rules to the types of src/flow. All throw std::invalid_argument, which names the field and
// its choices; flow::validate() checks the numbers.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

#include "flow/rules/guard.h"
#include "flow/rules/judge.h"
#include "flow/rules/prune.h"

namespace arlo::gateway {

// Returns the value that a word of the deployment names.
template <class Kind>
Kind named(const std::string& name, std::initializer_list<std::pair<const char*, Kind>> choices, const char* field) {
  std::string all;
  for (const auto& [text, kind] : choices) {
    if (name == text) return kind;
    if (*text != '\0') all += (all.empty() ? "" : ", ") + std::string(text);
  }
  throw std::invalid_argument(std::string(field) + ": '" + name + "' is none of " + all);
}

flow::Calibrator calibrator_of(const v1::Calibrator& from);
flow::Score score_of(const std::string& name);  // empty: the largest probability
// `edge`: its index among the core's edges; -1: an exit.
flow::Guard guard_of(const v1::Guard& from, std::int32_t edge = -1);
flow::PruneSpec prune_of(const v1::Prune& from);
flow::Vocabulary vocabulary_of(const v1::Vocabulary& from);

}  // namespace arlo::gateway
