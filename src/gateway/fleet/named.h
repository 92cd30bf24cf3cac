// Words of a configuration.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace arlo::gateway {

// What the name stands for. Throws std::invalid_argument, which names the field and its choices.
template <class Kind>
Kind named(const std::string& name, std::initializer_list<std::pair<const char*, Kind>> choices, const char* field) {
  std::string all;
  for (const auto& [text, kind] : choices) {
    if (name == text) return kind;
    all += (all.empty() ? "" : ", ") + std::string(text);
  }
  throw std::invalid_argument(std::string(field) + ": '" + name + "' is none of " + all);
}

}  // namespace arlo::gateway
