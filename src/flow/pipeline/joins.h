// Rows that become one again. What an edge with EdgeSpec::join makes is not a row of its head but a *part* of one: all
// that one row of the fork has become, and that leads there, waits for each other. Whoever ends last makes the head's
// row, of the parts that came; where none came there is none.
//
// A *group* is what one row of a fork has become for one head. Groups lie in each other, those of an earlier head
// inside; a visit knows the innermost, and holds all of them that its stage leads to. Groups live as long as their
// root.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/pipeline/tree.h"

namespace arlo::flow::pipeline {

using Group = std::uint32_t;  // dispatch::kNone: none

class Joins {
 public:
  // A row that goes into the head's.
  struct Part {
    std::int32_t edge = 0;
    std::uint64_t tag = 0;  // Children::tag
  };

  explicit Joins(const Tree& tree) : tree_(tree) {}

  // A visit of this stage, with this node, has made rows of these stages (bits): groups open for those that lead to a
  // stage which joins what comes from here. `first`: of the root's groups. Returns the innermost.
  Group fork(std::int32_t stage, Node node, std::uint32_t made, Group outer, Group* first);
  // The innermost of them that rows of a stage lead to.
  [[nodiscard]] Group of(Group innermost, std::int32_t stage) const;
  // A visit at this stage holds them.
  void hold(Group innermost, std::int32_t stage) {
    for (Group g = of(innermost, stage); g != dispatch::kNone; g = of(groups_[g].outer, stage)) ++groups_[g].open;
  }
  // Of a visit with this node that the innermost group is of; `right`: worth x accuracy.
  void add(Group innermost, std::int32_t head, const Part& part, Node node, double worth, double right);
  // One that holds it is gone. True: it was the last.
  bool leave(Group group) { return --groups_[group].open == 0; }
  [[nodiscard]] Group outer(Group group) const { return groups_[group].outer; }
  [[nodiscard]] std::int32_t head(Group group) const { return groups_[group].head; }
  [[nodiscard]] double worth(Group group) const { return groups_[group].worth; }
  // Mean accuracy of what its parts are.
  [[nodiscard]] double accuracy(Group group) const { return groups_[group].right / groups_[group].worth; }
  // In the order in which they came.
  [[nodiscard]] std::span<const Part> parts(Group group) const { return groups_[group].parts; }
  // Of the stage before the head, by the edge that is the tree's; where no part came that way, by its first variants.
  [[nodiscard]] Node node(Group group) const;
  // All of a root.
  void free(Group first);

 private:
  struct Of {
    std::int32_t head = 0;
    std::int32_t stage = 0;  // the fork
    std::int32_t open = 0;   // visits that hold it
    Group outer = dispatch::kNone;
    Group next = dispatch::kNone;  // of the root's, or the free ones
    Node fork = 0;                 // of its row
    Node node = dispatch::kNone;
    double worth = 0;
    double right = 0;
    std::vector<Part> parts;
  };

  const Tree& tree_;
  std::vector<Of> groups_;
  Group free_ = dispatch::kNone;
};

}  // namespace arlo::flow::pipeline
