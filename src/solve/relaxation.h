// Lower bounds for the rest of Eq. 1: the workers get a price instead of a number (Lagrange), and the left-over
// requests are rounded down to a few amounts for each level. Both can only make the optimum smaller, for curves of any
// shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solve/level.h"

namespace arlo::solve {

class Relaxation {
 public:
  // At most `amounts` left-over amounts are distinguished at each level.
  Relaxation(const std::vector<Level>& levels, int workers, std::size_t amounts);

  // Finds the price with the best bound of the whole problem (the one where the relaxed problem uses all workers).
  void tune();

  // Bound for levels i.. when `rest` is left over to level i, with `price` added for each of their instances.
  double bound(std::size_t i, double rest) const {
    const std::vector<Node>& nodes = nodes_[i];
    std::size_t at = 0;
    if (rest > 0) {
      for (std::size_t step = std::size_t{1} << 20; step > 0; step /= 2) {
        if (at + step < nodes.size() && nodes[at + step].rest <= rest + near_) at += step;
      }
    }
    return nodes[at].value + levels_[i].marginal * (rest - nodes[at].rest);
  }
  // Bound of Eq. 1, milliseconds x requests.
  double total() const { return nodes_.front().front().value - price_ * workers_; }
  double price() const { return price_; }
  // Left-over amounts this close, in requests, are one: the sums of doubles in them can be off by as much.
  double near() const { return near_; }
  std::uint64_t looked_at() const { return looked_at_; }

 private:
  // Leaves something over: cost without price, to a node of the next level. Levels that serve nothing (M = 0) may
  // have `most` instances too.
  struct Edge {
    int fewest, most;
    double cost;
    std::size_t target;
  };
  struct Node {
    double rest;
    double value = 0;
    int chosen = 0;          // instances in the best choice
    std::size_t target = 0;  // and the node of the next level that it leads to
    std::size_t edges_begin = 0, edges_end = 0, segments_begin = 0, segments_end = 0;
  };

  void link(std::size_t i, std::size_t amounts);
  void solve(double price);
  void evaluate(std::size_t i, Node& node, double price);

  const std::vector<Level>& levels_;
  int workers_;
  double near_ = 0;
  double price_ = 0;
  std::vector<std::vector<Node>> nodes_;  // by level and one for the end, ascending in rest; the first has rest 0
  std::vector<Edge> edges_;
  std::vector<Segment> segments_;
  std::uint64_t looked_at_ = 0;
};

}  // namespace arlo::solve
