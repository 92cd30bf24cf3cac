// Properties of characters for BERT's normaliser, equal to the `tokenizers` package's (see unicode_tables.py), and the
// normaliser itself. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace arlo::text {

// Bits of traits().
enum Trait : std::uint8_t {
  kControl = 1,      // left out of clean text: controls, formats, private use, U+FFFD
  kSpace = 2,        // white space
  kMark = 4,         // a mark that takes no room: an accent
  kPunctuation = 8,  // a word by itself
  kIdeograph = 16,   // Chinese, a word by itself
  kLowers = 32,      // has another lower case
  kDecomposes = 64,  // has a canonical decomposition
  kReorders = 128,   // has a combining class other than 0
};

std::uint8_t traits(char32_t c);
std::u32string_view lower(char32_t c);     // of one that kLowers
std::uint8_t combining_class(char32_t c);  // of one that kReorders

// The canonical decomposition, whole, of one that kDecomposes; at most four characters.
struct Decomposition {
  char32_t chars[4];
  std::size_t size;
};
Decomposition decompose(char32_t c);

// The character at `at`, which moves behind it. The text is valid UTF-8.
inline char32_t next_char(std::string_view text, std::size_t& at) {
  const auto byte = [&] { return static_cast<unsigned char>(text[at++]); };
  const char32_t first = byte();
  if (first < 0x80) return first;
  char32_t c = first < 0xe0 ? first & 0x1f : first < 0xf0 ? first & 0x0f : first & 0x07;
  for (int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3; more > 0; --more) c = c << 6 | (byte() & 0x3f);
  return c;
}

inline void append_utf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xe0 | c >> 12);
    } else {
      put(0xf0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3f));
    }
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

struct Normalizer {
  bool clean = false;          // controls go, white space becomes blanks
  bool spaced_cjk = false;     // blanks around ideographs
  bool strip_accents = false;  // decomposed (NFD), and the marks go
  bool lowercase = false;

  // Appends the normalised form of `text`, which is valid UTF-8. ASCII characters change neither the characters before
  // them nor those after: a text may be normalised in pieces that begin with one.
  // `origins`, unless it is null, gets for each byte of `out` the byte of `text` at which the character begins that it
  // is of; `out` is empty before.
  void normalize(std::string_view text, std::string& out, std::vector<std::uint32_t>* origins = nullptr) const;
};

}  // namespace arlo::text
