// BERT's normaliser, as the `tokenizers` package has it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace arlo::text {

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
