#include "text/wordpiece.h"

#include <algorithm>
#include <utility>

namespace arlo::text {

Trie::Node Trie::add_root() {
  ids_.push_back(kNone);
  return static_cast<Node>(ids_.size() - 1);
}

bool Trie::add(Node root, std::string_view word, std::int32_t id) {
  Node node = root;
  for (const char c : word) {
    const auto key = node << 8 | static_cast<unsigned char>(c);
    auto& edge = table_[slot(key)];
    if (edge.key == 0) {
      if (ids_.size() > kMostNodes) return false;
      edge = {key, add_root()};
      node = edge.to;
      if (ids_.size() * 2 > table_.size()) grow();
    } else {
      node = edge.to;
    }
  }
  ids_[node] = id;
  return true;
}

void Trie::grow() {
  auto old = std::exchange(table_, std::vector<Edge>(table_.size() * 2));
  --shift_;
  for (const auto& edge : old) {
    if (edge.key != 0) table_[slot(edge.key)] = edge;
  }
}

bool WordPiece::build(const std::vector<Piece>& vocabulary, std::string_view prefix, std::int32_t unknown,
                      std::size_t most_chars) {
  trie_ = {};
  begins_ = trie_.add_root();
  goes_on_ = trie_.add_root();
  unknown_ = unknown;
  most_chars_ = most_chars;
  return std::all_of(vocabulary.begin(), vocabulary.end(), [&](const Piece& piece) {
    const std::string_view text = piece.text;
    if (!text.empty() && !trie_.add(begins_, text, piece.id)) return false;
    return !text.starts_with(prefix) || text.size() == prefix.size() ||
           trie_.add(goes_on_, text.substr(prefix.size()), piece.id);
  });
}

void WordPiece::encode(std::string_view word, Ids& ids) const {
  const auto before = ids.size();
  const auto goes_on = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  bool known = word.size() <= most_chars_ ||
               word.size() - static_cast<std::size_t>(std::count_if(word.begin(), word.end(), goes_on)) <= most_chars_;
  for (auto root = begins_; known && !word.empty(); root = goes_on_) {
    const auto found = trie_.longest(root, word);
    known = found.id != Trie::kNone;
    word.remove_prefix(found.size);
    if (known) ids.push_back(found.id);
  }
  if (known) return;
  ids.resize(before);
  ids.push_back(unknown_);
}

}  // namespace arlo::text
