// Assigns variants by a table: for each block the parts of its nodes, and for each pool the leftover capacity.
//
// `by_plan` takes the plan's shares of prefixes and fills the present pools (water-filling): a pool's excess goes to
// the others of its block, the most accurate first. `by_accuracy` is MostAccurateFirst as printed (Loki Algorithm 1),
// with pools for workers: stage by stage, the most accurate variants' rows first, each to the most accurate pool that
// has room. Both: rows that no pool has room for are spread in proportion to capacity, and `overloaded` is set; without
// a known demand, parts are in proportion to capacity as well.
//
// A table is followed in turns, not by chance: the node that is furthest behind its part is next, the lower one of two.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/pipeline/tree.h"

namespace arlo::flow::pipeline {

class Shares {
 public:
  explicit Shares(const Tree& tree);

  // `capacity`: [variants], rows a second of all present instances. O(nodes).
  void by_plan(const Plan& plan, std::span<const double> capacity);
  void by_accuracy(const Plan& plan, std::span<const double> capacity);

  // Returns the node whose turn it is, of `variants` nodes from `block` on.
  Node next(Block block, std::int32_t variants);
  [[nodiscard]] double part(Node node) const { return part_[node]; }
  [[nodiscard]] bool overloaded() const { return overloaded_; }
  // Rows a second of a variant's pool that no table has given away.
  [[nodiscard]] double left(std::int32_t variant) const { return left_[static_cast<std::size_t>(variant)]; }

  // Backup tokens, one a row. A variant's tokens grow by its leftover capacity, up to a second of it, at least one.
  void refill(double seconds);
  [[nodiscard]] bool has_token(std::int32_t variant) const { return tokens_[static_cast<std::size_t>(variant)] >= 1; }
  void take_token(std::int32_t variant) { tokens_[static_cast<std::size_t>(variant)] -= 1; }

 private:
  void begin(std::span<const double> capacity);
  // Spreads the excess of a flow over the `part`s of a stage's allowed variants.
  void spread(double over, const Tree::Stage& stage, std::span<const double> capacity, std::span<double> rows);
  void in_proportion(const Tree::Stage& stage, std::span<const double> capacity, Node block);

  const Tree& tree_;
  std::vector<double> part_;         // [nodes]
  std::vector<double> behind_;       // [nodes]: turns that it is owed
  std::vector<double> flow_;         // [nodes] or [variants]: rows a second
  std::vector<double> rows_;         // [variants of a stage]
  std::vector<double> left_;         // [variants]
  std::vector<double> tokens_;       // [variants]
  std::vector<std::int32_t> order_;  // [variants]: of each stage, the most accurate first, then the lower
  bool overloaded_ = false;
};

}  // namespace arlo::flow::pipeline
