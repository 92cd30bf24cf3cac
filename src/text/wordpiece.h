// WordPiece: a word becomes the longest known piece at its start, then the longest that goes on, to its end; and the
// trie that finds them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace arlo::text {

// Several sets of words share one table; `root` says which. Words are of UTF-8, so they are found at whole characters.
class Trie {
 public:
  using Node = std::uint32_t;
  static constexpr std::int32_t kNone = -1;
  static constexpr std::size_t kMostNodes = (1u << 24) - 1;

  struct Found {
    std::int32_t id = kNone;
    std::size_t size = 0;  // bytes
  };

  Trie() : table_(1 << 8), ids_(1, kNone) {}
  Node add_root();
  // A word is not empty; of one that is added again the last number counts. False: there are too many.
  bool add(Node root, std::string_view word, std::int32_t id);

  // The longest word that `text` starts with.
  [[nodiscard]] Found longest(Node root, std::string_view text) const {
    Found found;
    Node node = root;
    for (std::size_t i = 0; i < text.size();) {
      node = step(node, static_cast<unsigned char>(text[i]));
      if (node == 0) break;
      ++i;
      if (ids_[node] != kNone) found = {ids_[node], i};
    }
    return found;
  }

 private:
  struct Edge {
    std::uint32_t key = 0;  // node and byte; 0: none
    Node to = 0;
  };

  [[nodiscard]] std::size_t slot(std::uint32_t key) const {
    auto at = (key * 0x9e3779b1u) >> shift_;
    while (table_[at].key != 0 && table_[at].key != key) at = (at + 1) & (table_.size() - 1);
    return at;
  }
  [[nodiscard]] Node step(Node node, unsigned char byte) const { return table_[slot(node << 8 | byte)].to; }
  void grow();

  std::vector<Edge> table_;  // open addressing
  int shift_ = 24;           // 32 less the bits of its size
  std::vector<std::int32_t> ids_;
};

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
