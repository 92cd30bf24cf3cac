#include "text/trie.h"

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

}  // namespace arlo::text
