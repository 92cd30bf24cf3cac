#include "text/unicode.h"

#include <algorithm>
#include <iterator>

namespace arlo::text {
namespace {

struct Into {
  char32_t from;
  std::uint16_t at;  // in kPool
  std::uint16_t size;
};
struct Class {
  char32_t of;
  std::uint8_t value;
};

#include "unicode_tables.inc"

std::u32string_view into(const Into* first, const Into* last, char32_t c) {
  const auto* found = std::lower_bound(first, last, c, [](const Into& each, char32_t x) { return each.from < x; });
  return {kPool + found->at, found->size};
}

// Hangul syllables, Unicode standard 3.12.
constexpr char32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11a7;
constexpr char32_t kSyllableCount = 11172, kVowelCount = 21, kTailCount = 28;

}  // namespace

std::uint8_t traits(char32_t c) { return kPages[kPageOf[c >> 8]][c & 0xff]; }

std::u32string_view lower(char32_t c) { return into(std::begin(kLower), std::end(kLower), c); }

std::uint8_t combining_class(char32_t c) {
  return std::lower_bound(std::begin(kClasses), std::end(kClasses), c,
                          [](const Class& each, char32_t x) { return each.of < x; })
      ->value;
}

Decomposition decompose(char32_t c) {
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const char32_t index = c - kSyllables;
    const char32_t tail = index % kTailCount;
    return {{kLeads + index / (kVowelCount * kTailCount), kVowels + index / kTailCount % kVowelCount, kTails + tail},
            tail == 0 ? 2u : 3u};
  }
  Decomposition found{{}, 0};
  for (const char32_t each : into(std::begin(kDecompositions), std::end(kDecompositions), c)) {
    found.chars[found.size++] = each;
  }
  return found;
}

}  // namespace arlo::text
