// The value of a variant to a visit: utility x the accuracy reachable behind it, less the cost of the worker-seconds
// that it and the rest of its way take: their price and the energy of each variant. The dual of the planner's program
// (SPEC of prefix flows): if every visit takes the variant of most value at the right prices, the flow is optimal.
//
// A visit is worth `k`, its part of the root's utility. Of one way through the rest of the tree that is a line in k:
// k x accuracy - price x work. So of a node it is the upper envelope of its ways' lines, which is convex, and that of a
// block the envelope of its nodes. They are recomputed with each change of prices; a query walks along a few lines.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/pipeline/tree.h"

namespace arlo::flow::pipeline {

class Values {
 public:
  explicit Values(const Tree& tree) : tree_(tree), nodes_(tree.nodes()) {}

  // `price`: [variants], utility for a worker-second, without its energy. Allocates nothing once it has grown. O(nodes
  // x lines).
  void update(std::span<const double> price);

  // Of a node, to a visit that is worth k.
  [[nodiscard]] double of(Node node, double k) const {
    const Part part = nodes_[node];
    double best = lines_[part.first].slope * k + lines_[part.first].cut;
    for (std::uint32_t i = part.first + 1; i < part.end; ++i) {
      const double next = lines_[i].slope * k + lines_[i].cut;
      if (next <= best) break;
      best = next;
    }
    return best;
  }

 private:
  struct Line {
    double slope;
    double cut;
  };
  struct Part {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
  };
  // The upper envelope, for k >= 0, of lines in any order; in place.
  static void envelop(std::vector<Line>& lines);
  void add_block(std::int32_t to, Node node, double weight, double factor, double own);

  const Tree& tree_;
  std::vector<Part> nodes_;
  std::vector<Line> lines_;
  std::vector<Line> sum_, block_, next_;  // for reuse
};

}  // namespace arlo::flow::pipeline
