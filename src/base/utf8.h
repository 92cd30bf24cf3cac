// Checks client text for protobuf string fields: bytes that are not UTF-8 make the message unparseable.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace arlo {

// As in the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
inline bool valid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      ++i;
      continue;
    }
    const int more = c >= 0xc2 && c <= 0xdf ? 1 : (c & 0xf0) == 0xe0 ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
    if (more == 0 || i + static_cast<std::size_t>(more) >= text.size()) return false;
    for (int k = 1; k <= more; ++k) {
      if ((static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]) & 0xc0) != 0x80) return false;
    }
    const auto second = static_cast<unsigned char>(text[i + 1]);
    if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) || (c == 0xf0 && second < 0x90) ||
        (c == 0xf4 && second > 0x8f)) {
      return false;
    }
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

// Of text that is UTF-8.
inline std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

// Replaces all but printable ASCII by question marks.
inline std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= ' ' && c < 127 ? c : '?';
  return out;
}

// For messages that quote a client: the first `shown` bytes, printable, in quotes.
inline std::string quoted(std::string_view text, std::size_t shown = 80) {
  return "'" + printable(text.substr(0, shown)) + (text.size() > shown ? "...'" : "'");
}

}  // namespace arlo
