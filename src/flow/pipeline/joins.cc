#include "flow/pipeline/joins.h"

#include <array>
#include <bit>

namespace arlo::flow::pipeline {

using dispatch::kNone;

Group Joins::fork(std::int32_t stage, Node node, std::uint32_t made, Group outer, Group* first) {
  // The later head is the outer one: an earlier one may lead to it.
  for (std::uint32_t left = tree_.stage(stage).forks; left != 0;) {
    const std::int32_t head = std::bit_width(left) - 1;
    left &= ~(1U << head);
    bool any = false;
    for (std::uint32_t to = made; to != 0; to &= to - 1) {
      any = any || (tree_.stage(std::countr_zero(to)).leads >> head & 1U) != 0;
    }
    if (!any) continue;
    Group id = free_;
    if (id == kNone) {
      id = static_cast<Group>(groups_.size());
      groups_.emplace_back();
    } else {
      free_ = groups_[id].next;
    }
    Of& group = groups_[id];
    group.head = head;
    group.stage = stage;
    group.open = 0;
    group.outer = outer;
    group.next = *first;
    group.fork = node;
    group.node = kNone;
    group.worth = group.right = 0;
    group.parts.clear();
    *first = outer = id;
  }
  return outer;
}

Group Joins::of(Group innermost, std::int32_t stage) const {
  while (innermost != kNone && (tree_.stage(stage).leads >> groups_[innermost].head & 1U) == 0) {
    innermost = groups_[innermost].outer;
  }
  return innermost;
}

void Joins::add(Group innermost, std::int32_t head, const Part& part, Node node, double worth, double right) {
  while (groups_[innermost].head != head) innermost = groups_[innermost].outer;
  Of& group = groups_[innermost];
  group.parts.push_back(part);
  group.worth += worth;
  group.right += right;
  if (group.node == kNone && part.edge == tree_.stage(head).edge) group.node = node;
}

Node Joins::node(Group id) const {
  const Of& group = groups_[id];
  if (group.node != kNone) return group.node;
  std::array<std::int32_t, kMaxStages> way{};  // from before the head up to the fork
  std::size_t steps = 0;
  for (std::int32_t s = tree_.stage(group.head).parent; s != group.stage; s = tree_.stage(s).parent) way[steps++] = s;
  Node node = group.fork;
  while (steps > 0) node = tree_.block(node, way[--steps]);
  return node;
}

void Joins::free(Group first) {
  while (first != kNone) {
    const Group next = groups_[first].next;
    groups_[first].next = free_;
    free_ = first;
    first = next;
  }
}

}  // namespace arlo::flow::pipeline
