#include "flow/pipeline/shares.h"

#include <algorithm>
#include <numeric>

namespace arlo::flow::pipeline {
namespace {

constexpr double kNothing = 1e-9;  // rows a second

bool feasible(const Plan& plan, Node node) { return plan.feasible.empty() || plan.feasible[node] != 0; }

}  // namespace

Shares::Shares(const Tree& tree)
    : tree_(tree),
      part_(tree.nodes()),
      behind_(tree.nodes()),
      flow_(std::max<std::size_t>(tree.nodes(), at(tree.variants()))),
      rows_(at(tree.variants())),
      left_(at(tree.variants())),
      tokens_(at(tree.variants())),
      order_(at(tree.variants())) {
  std::iota(order_.begin(), order_.end(), 0);
  for (std::int32_t s = 0; s < tree.stages(); ++s) {
    const auto first = order_.begin() + tree.stage(s).first_variant;
    std::stable_sort(first, first + tree.stage(s).variants, [&](std::int32_t a, std::int32_t b) {
      return tree.variant(a).accuracy > tree.variant(b).accuracy;
    });
  }
}

void Shares::begin(std::span<const double> capacity) {
  std::copy(capacity.begin(), capacity.end(), left_.begin());
  std::fill(flow_.begin(), flow_.end(), 0.0);
  overloaded_ = false;
}

void Shares::in_proportion(const Tree::Stage& stage, std::span<const double> capacity, Node block) {
  double all = 0;
  for (std::int32_t v = 0; v < stage.variants; ++v) all += capacity[at(stage.first_variant + v)];
  for (std::int32_t v = 0; v < stage.variants; ++v) {
    part_[block + static_cast<Node>(v)] = all > 0 ? capacity[at(stage.first_variant + v)] / all : 1.0 / stage.variants;
  }
}

void Shares::spread(double over, const Tree::Stage& stage, std::span<const double> capacity, std::span<double> rows) {
  if (over <= kNothing) return;
  overloaded_ = true;
  double all = 0;
  for (std::int32_t v = 0; v < stage.variants; ++v) all += capacity[at(stage.first_variant + v)];
  if (all <= 0) return;
  for (std::int32_t v = 0; v < stage.variants; ++v) {
    rows[at(v)] += over * capacity[at(stage.first_variant + v)] / all;
  }
}

void Shares::by_plan(const Plan& plan, std::span<const double> capacity) {
  begin(capacity);
  for (std::int32_t s = 0; s < tree_.stages(); ++s) {
    const Tree::Stage& stage = tree_.stage(s);
    for (Block block = stage.first; block < stage.end; block += static_cast<Node>(stage.variants)) {
      double in = plan.demand;
      if (stage.parent >= 0) {
        const Node parent = tree_.parent(block, s);
        in = flow_[parent] * stage.factor[at(tree_.variant_in_stage(parent, stage.parent))];
      }
      double wanted = 0;
      for (std::int32_t v = 0; v < stage.variants; ++v) {
        wanted += plan.share.empty() ? 0 : plan.share[block + static_cast<Node>(v)];
      }
      if (in <= kNothing || wanted <= 0) {
        for (std::int32_t v = 0; v < stage.variants && wanted > 0; ++v) {
          part_[block + static_cast<Node>(v)] = plan.share[block + static_cast<Node>(v)] / wanted;
        }
        if (wanted <= 0) in_proportion(stage, capacity, block);
        continue;
      }
      double over = 0;
      for (std::int32_t v = 0; v < stage.variants; ++v) {
        const double wants = in * plan.share[block + static_cast<Node>(v)] / wanted;
        double& left = left_[at(stage.first_variant + v)];
        rows_[at(v)] = std::min(wants, left);
        left -= rows_[at(v)];
        over += wants - rows_[at(v)];
      }
      for (std::int32_t i = 0; i < stage.variants && over > kNothing; ++i) {
        const std::int32_t v = order_[at(stage.first_variant + i)];
        if (!feasible(plan, block + static_cast<Node>(v - stage.first_variant))) continue;
        const double more = std::min(over, left_[at(v)]);
        rows_[at(v - stage.first_variant)] += more;
        left_[at(v)] -= more;
        over -= more;
      }
      spread(over, stage, capacity, rows_);
      const double all = std::accumulate(rows_.begin(), rows_.begin() + stage.variants, 0.0);
      for (std::int32_t v = 0; v < stage.variants; ++v) {
        const Node node = block + static_cast<Node>(v);
        part_[node] = all > 0 ? rows_[at(v)] / all : plan.share[node] / wanted;
        flow_[node] = in * part_[node];
      }
    }
  }
}

void Shares::by_accuracy(const Plan& plan, std::span<const double> capacity) {
  begin(capacity);
  for (std::int32_t s = 0; s < tree_.stages(); ++s) {
    const Tree::Stage& stage = tree_.stage(s);
    // The frontend is the one parent of the entry, with factor 1.
    const std::int32_t parents = stage.parent < 0 ? 1 : tree_.stage(stage.parent).variants;
    for (std::int32_t i = 0; i < parents; ++i) {
      const std::int32_t parent = stage.parent < 0 ? -1 : order_[at(tree_.stage(stage.parent).first_variant + i)];
      const std::int32_t place = stage.parent < 0 ? 0 : parent - tree_.stage(stage.parent).first_variant;
      const double in = stage.parent < 0 ? plan.demand : flow_[at(parent)] * stage.factor[at(place)];
      const Tree::Stage& of_parent = tree_.stage(std::max(stage.parent, 0));
      const Block first = stage.parent < 0 ? stage.first : tree_.block(of_parent.first + static_cast<Node>(place), s);
      const Block step = static_cast<Node>(stage.variants * (stage.parent < 0 ? 1 : of_parent.variants));
      if (in <= kNothing) {
        for (Block block = first; block < stage.end; block += step) in_proportion(stage, capacity, block);
        continue;
      }
      std::fill_n(rows_.begin(), stage.variants, 0.0);
      double out = in;
      for (std::int32_t j = 0; j < stage.variants && out > kNothing; ++j) {
        const std::int32_t v = order_[at(stage.first_variant + j)];
        bool pair = false;  // some path takes it after this parent
        for (Block block = first; block < stage.end && !pair; block += step) {
          pair = feasible(plan, block + static_cast<Node>(v - stage.first_variant));
        }
        if (!pair) continue;
        const double more = std::min(out, left_[at(v)]);
        rows_[at(v - stage.first_variant)] = more;
        left_[at(v)] -= more;
        out -= more;
      }
      spread(out, stage, capacity, rows_);
      const double all = std::accumulate(rows_.begin(), rows_.begin() + stage.variants, 0.0);
      for (Block block = first; block < stage.end; block += step) {
        if (all <= 0) in_proportion(stage, capacity, block);
        for (std::int32_t v = 0; v < stage.variants && all > 0; ++v) {
          part_[block + static_cast<Node>(v)] = rows_[at(v)] / all;
        }
      }
      for (std::int32_t v = 0; v < stage.variants && all > 0; ++v) {
        flow_[at(stage.first_variant + v)] += in * rows_[at(v)] / all;
      }
    }
  }
}

Node Shares::next(Block block, std::int32_t variants) {
  Node best = block;
  for (Node n = block; n < block + static_cast<Node>(variants); ++n) {
    behind_[n] += part_[n];
    if (part_[n] > 0 && (part_[best] <= 0 || behind_[n] > behind_[best])) best = n;
  }
  behind_[best] -= 1;
  return best;
}

void Shares::refill(double seconds) {
  for (std::size_t v = 0; v < tokens_.size(); ++v) {
    const double most = left_[v] > kNothing ? std::max(left_[v], 1.0) : 0.0;
    tokens_[v] = std::min(tokens_[v] + left_[v] * seconds, most);
  }
}

}  // namespace arlo::flow::pipeline
