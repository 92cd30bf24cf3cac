#include "text/unicode.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

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

namespace {

// Puts characters in canonical order, and applies the remaining steps to each.
class Tail {
 public:
  Tail(const Normalizer& how, std::string& out, std::vector<std::uint32_t>* origins)
      : how_(how), out_(out), origins_(origins) {}

  // What follows is of the character that begins there.
  void at(std::size_t origin) { origin_ = static_cast<std::uint32_t>(origin); }
  void ascii(char c) {
    if (!waiting_.empty()) flush();
    if (origins_ != nullptr) origins_->push_back(origin_);
    out_.push_back(how_.lowercase && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  // Printable ASCII, when origins are not needed.
  void run(std::string_view text) {
    if (!waiting_.empty()) flush();
    const auto before = out_.size();
    out_.append(text);
    if (!how_.lowercase) return;
    char* const to = out_.data() + before;
    for (std::size_t i = 0; i < text.size(); ++i) {
      to[i] = static_cast<char>(to[i] + (to[i] >= 'A' && to[i] <= 'Z' ? 'a' - 'A' : 0));
    }
  }
  void other(char32_t c, std::uint8_t traits) {
    if (!how_.strip_accents) return emit(c, traits, origin_);
    if ((traits & kDecomposes) == 0) return order(c, traits, false);
    const auto parts = decompose(c);
    for (std::size_t i = 0; i < parts.size; ++i) order(parts.chars[i], text::traits(parts.chars[i]), i != 0);
  }
  void flush() {
    std::vector<std::uint32_t> origins;  // in the order of the text, which is the one that they are counted in
    for (const auto& each : waiting_) {
      if (origins_ != nullptr && !each.added) origins.push_back(each.origin);
    }
    std::stable_sort(waiting_.begin(), waiting_.end(), [](auto& a, auto& b) { return a.combining < b.combining; });
    std::size_t next = 0;
    for (const auto& each : waiting_) {
      const bool counts = !each.added && next < origins.size();
      const std::uint32_t origin = counts ? origins[next++] : next > 0 ? origins[next - 1] : each.origin;
      if (each.stays) emit(each.c, text::traits(each.c), origin);
    }
    waiting_.clear();
  }

 private:
  // `added`: it came out of the character before it.
  void order(char32_t c, std::uint8_t traits, bool added) {
    const bool stays = (traits & kMark) == 0;
    if ((traits & kReorders) != 0) {
      // Where they stand among the others does not matter for those that go, unless it is asked for.
      if (stays || origins_ != nullptr) waiting_.push_back({combining_class(c), c, origin_, added, stays});
      return;
    }
    if (!waiting_.empty()) flush();
    if (stays) emit(c, traits, origin_);
  }
  void emit(char32_t c, std::uint8_t traits, std::uint32_t origin) {
    if (!how_.lowercase || (traits & kLowers) == 0) {
      append_utf8(c, out_);
    } else {
      for (const char32_t each : lower(c)) append_utf8(each, out_);
    }
    if (origins_ != nullptr) origins_->resize(out_.size(), origin);
  }
  struct Waiting {
    std::uint8_t combining;
    char32_t c;
    std::uint32_t origin;
    bool added;
    bool stays;
  };

  const Normalizer& how_;
  std::string& out_;
  std::vector<std::uint32_t>* origins_;
  std::uint32_t origin_ = 0;
  std::vector<Waiting> waiting_;
};

// Bytes from `at` on that are printable ASCII.
std::size_t printable_ascii(std::string_view text, std::size_t at) {
  constexpr std::uint64_t kOnes = ~std::uint64_t{0} / 255;
  const auto begin = at;
  for (std::uint64_t eight = 0; text.size() - at >= sizeof eight; at += sizeof eight) {
    std::memcpy(&eight, text.data() + at, sizeof eight);
    // Above 0x7e, or below the space, in one of them.
    if (((eight | (eight + kOnes) | (eight - kOnes * ' ')) & kOnes * 0x80) != 0) break;
  }
  while (at < text.size() && text[at] >= ' ' && text[at] < 127) ++at;
  return at - begin;
}

}  // namespace

void Normalizer::normalize(std::string_view text, std::string& out, std::vector<std::uint32_t>* origins) const {
  out.reserve(out.size() + text.size());
  Tail tail(*this, out, origins);
  for (std::size_t at = 0; at < text.size();) {
    if (origins == nullptr) {
      if (const auto size = printable_ascii(text, at); size != 0) {
        tail.run(text.substr(at, size));
        at += size;
        continue;
      }
    }
    tail.at(at);
    const char byte = text[at];
    if (byte > ' ' && byte < 127) {
      tail.ascii(byte);
      ++at;
      continue;
    }
    const char32_t c = next_char(text, at);
    const auto has = traits(c);
    if (clean && (has & kControl) != 0) continue;
    if (c < 0x80 || (clean && (has & kSpace) != 0)) {
      tail.ascii(clean ? ' ' : static_cast<char>(c));
    } else if (spaced_cjk && (has & kIdeograph) != 0) {
      tail.ascii(' ');
      tail.other(c, has);
      tail.ascii(' ');
    } else {
      tail.other(c, has);
    }
  }
  tail.flush();
}

}  // namespace arlo::text
