// Joins rows into one. An edge with EdgeSpec::join makes not a row of its head but a *part* of one: all descendants of
// one row of the fork that lead there wait for each other. The last one to end makes the head's row, of the parts that
// came; without parts there is no row.
//
// A *group* holds the parts of one row of a fork for one head. Groups are nested, those of an earlier head inside; a
// visit knows the innermost and holds all groups that its stage leads to. Groups live as long as their root.
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

  // A visit of this stage, with this node, has made rows of these stages (bits). Opens groups for those that lead to a
  // stage that joins rows from here, and returns the innermost. `first`: of the root's groups.
  Group fork(std::int32_t stage, Node node, std::uint32_t made, Group outer, Group* first);
  // Returns the innermost of them that rows of a stage lead to.
  [[nodiscard]] Group of(Group innermost, std::int32_t stage) const;
  // Makes a visit at this stage hold its groups.
  void hold(Group innermost, std::int32_t stage) {
    for (Group g = of(innermost, stage); g != dispatch::kNone; g = of(groups_[g].outer, stage)) ++groups_[g].open;
  }
  // Adds a part of a visit with this node to the group of the head; `right`: worth x accuracy.
  void add(Group innermost, std::int32_t head, const Part& part, Node node, double worth, double right);
  // A visit that holds the group has ended. True: it was the last.
  bool leave(Group group) { return --groups_[group].open == 0; }
  [[nodiscard]] Group outer(Group group) const { return groups_[group].outer; }
  [[nodiscard]] std::int32_t head(Group group) const { return groups_[group].head; }
  [[nodiscard]] double worth(Group group) const { return groups_[group].worth; }
  // Returns the mean accuracy of its parts.
  [[nodiscard]] double accuracy(Group group) const { return groups_[group].right / groups_[group].worth; }
  // Returns its parts in the order in which they came.
  [[nodiscard]] std::span<const Part> parts(Group group) const { return groups_[group].parts; }
  // Returns the node at the stage before the head, by the tree's edge; if no part came that way, by its first variants.
  [[nodiscard]] Node node(Group group) const;
  // Frees all groups of a root.
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
