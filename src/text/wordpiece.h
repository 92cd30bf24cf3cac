// WordPiece: a word becomes the longest known piece at its start, then the longest that goes on, to its end. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/trie.h"

namespace arlo::text {

using Ids = std::vector<std::int32_t>;

class WordPiece {
 public:
  struct Piece {
    std::string text;
    std::int32_t id;
  };
  // `prefix` marks the pieces that go on. False: there are too many.
  bool build(const std::vector<Piece>& vocabulary, std::string_view prefix, std::int32_t unknown,
             std::size_t most_chars);

  // Appends the pieces of a word that is not empty. One with an unknown part, or of more characters than are allowed,
  // is one unknown piece.
  void encode(std::string_view word, Ids& ids) const;

 private:
  Trie trie_;
  Trie::Node begins_ = 0;
  Trie::Node goes_on_ = 0;
  std::int32_t unknown_ = 0;
  std::size_t most_chars_ = 100;
};

}  // namespace arlo::text
