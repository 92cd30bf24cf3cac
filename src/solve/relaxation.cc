#include "solve/relaxation.h"

#include <algorithm>
#include <cmath>

namespace arlo::solve {
namespace {

// Ascending, one of each group of (nearly) equal ones, and no more than `amounts` of them, 0 among them.
void thin(std::vector<double>& rests, std::size_t amounts, double near) {
  rests.push_back(0);
  std::sort(rests.begin(), rests.end());
  rests.erase(std::unique(rests.begin(), rests.end(), [near](double a, double b) { return b - a <= near; }),
              rests.end());
  if (rests.size() <= amounts) return;
  for (std::size_t k = 0; k < amounts; ++k) rests[k] = rests[k * rests.size() / amounts];
  rests.resize(amounts);
}

}  // namespace

Relaxation::Relaxation(const std::vector<Level>& levels, int workers, std::size_t amounts)
    : levels_(levels), workers_(workers), nodes_(levels.size() + 1) {
  for (const Level& level : levels) near_ += 1e-14 * level.demand;
  nodes_.front().push_back(Node{0});
  nodes_.back().push_back(Node{0});  // the end: nothing left over, nothing left to pay
  for (std::size_t i = 0; i < levels.size(); ++i) link(i, amounts);
}

// The choices of level i, and the nodes of the next one that they lead to.
void Relaxation::link(std::size_t i, std::size_t amounts) {
  const Level& level = levels_[i];
  const std::size_t begin = edges_.size();
  std::vector<double> rests;  // one for each new edge, then those of the nodes
  for (Node& node : nodes_[i]) {
    const double arriving = node.rest + level.demand;
    const int enough = level.enough(arriving);
    node.segments_begin = segments_.size();
    level.segments(arriving, enough, level.upper, [&](const Segment& segment) { segments_.push_back(segment); });
    node.segments_end = segments_.size();
    node.edges_begin = edges_.size();
    if (arriving > 0 && !level.last && level.capacity == 0) {
      edges_.push_back({level.lower, level.upper, 0, 0});
      rests.push_back(arriving);
    } else if (!level.last) {
      for (int n = level.lower; n < enough && n <= level.upper; ++n) {
        edges_.push_back({n, n, level.full_cost(n), 0});
        rests.push_back(arriving - level.full(n));
      }
    }
    node.edges_end = edges_.size();
  }
  looked_at_ += edges_.size() - begin;
  if (level.last) return;
  const std::vector<double> exact = rests;
  thin(rests, amounts, near_);
  for (const double rest : rests) nodes_[i + 1].push_back(Node{rest});
  for (std::size_t k = 0; k < exact.size(); ++k) {
    const auto above = std::upper_bound(rests.begin(), rests.end(), exact[k] + near_);
    Edge& edge = edges_[begin + k];
    edge.target = static_cast<std::size_t>(above - rests.begin()) - 1;
    edge.cost += levels_[i + 1].marginal * (exact[k] - rests[edge.target]);
  }
}

void Relaxation::evaluate(std::size_t i, Node& node, double price) {
  const Level& level = levels_[i];
  const std::vector<Node>& next = nodes_[i + 1];
  node.value = kInfinity;
  const auto offer = [&](double value, int n, std::size_t target) {
    if (value < node.value) {
      node.value = value;
      node.chosen = n;
      node.target = target;
    }
  };
  for (std::size_t k = node.edges_begin; k < node.edges_end; ++k) {
    const Edge& edge = edges_[k];
    const int n = price < 0 ? edge.most : edge.fewest;
    offer(edge.cost + price * n + next[edge.target].value, n, edge.target);
  }
  const double arriving = node.rest + level.demand;
  const double after = next.front().value;
  for (std::size_t k = node.segments_begin; k < node.segments_end; ++k) {
    const auto [a, b] = segments_[k].best(price);
    offer(level.curve.cost(arriving, a) + price * a + after, a, 0);
    if (b != a) offer(level.curve.cost(arriving, b) + price * b + after, b, 0);
  }
  looked_at_ += node.edges_end - node.edges_begin + node.segments_end - node.segments_begin;
}

void Relaxation::solve(double price) {
  price_ = price;
  for (std::size_t i = levels_.size(); i-- > 0;) {
    for (Node& node : nodes_[i]) evaluate(i, node, price);
  }
}

void Relaxation::tune() {
  // Two allocations, one with too few workers and one with too many, and the price at which they cost the same; the
  // best allocation at that price takes the place of one of them, until it is no better than they are.
  std::vector<int> lower;
  std::vector<int> upper;
  double few = 0;
  double many = 0;
  for (const Level& level : levels_) {
    few += level.lower;
    many += level.upper;
    lower.push_back(level.lower);
    upper.push_back(level.upper);
  }
  double few_cost = value(levels_, lower);
  double many_cost = value(levels_, upper);
  if (few == many) {
    solve(0);
    return;
  }
  for (int tried = 0; tried < kPrices; ++tried) {
    solve((few_cost - many_cost) / (many - few));
    const Node& first = nodes_.front().front();
    const double line = few_cost + price_ * few;
    double used = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      const Node& node = nodes_[i][at];
      used += node.chosen;
      at = node.target;
    }
    const double cost = first.value - price_ * used;
    if (used == workers_ || !(first.value < line - 1e-12 * std::abs(line))) return;
    (used < workers_ ? few : many) = used;
    (used < workers_ ? few_cost : many_cost) = cost;
  }
}

}  // namespace arlo::solve
