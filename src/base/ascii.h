// Text of protocols: ASCII, its case of no meaning.
#pragma once

#include <algorithm>
#include <string_view>

namespace arlo {

inline bool equal_ignoring_case(std::string_view a, std::string_view b) {
  constexpr auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace arlo
