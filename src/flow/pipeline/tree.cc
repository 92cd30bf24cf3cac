#include "flow/pipeline/tree.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "flow/rules/judge.h"

namespace arlo::flow::pipeline {
namespace {

// Returns the first edge to a stage.
const EdgeSpec& edge_to(const Spec& spec, std::int32_t stage) {
  return *std::find_if(spec.edges.begin(), spec.edges.end(), [stage](const EdgeSpec& e) { return e.to == stage; });
}

// Returns whether each row of a stage comes of one row of another one. A joined row comes of the fork's.
bool comes_of(const Spec& spec, std::int32_t stage, std::int32_t before) {
  while (stage > before) {
    const EdgeSpec& edge = edge_to(spec, stage);
    stage = edge.join >= 0 ? edge.join : edge.from;
  }
  return stage == before;
}

void validate_joins(const Spec& spec, const std::vector<int>& reached) {
  std::vector<std::uint32_t> leads(spec.stages.size());  // bits: stages behind
  for (auto s = static_cast<std::int32_t>(spec.stages.size()) - 1; s >= 0; --s) {
    for (const EdgeSpec& e : spec.edges) {
      if (e.from == s) leads[at(s)] |= 1U << e.to | leads[at(e.to)];
    }
  }
  for (const EdgeSpec& e : spec.edges) {
    const EdgeSpec& main = edge_to(spec, e.to);
    need(reached[at(e.to)] == 1 || e.join >= 0, "edges: several lead to a stage only where it joins their rows");
    need(e.join == main.join, "join: all edges to a stage join rows of the same one");
    if (e.join < 0) continue;
    need(comes_of(spec, e.from, e.join), "join: rows of the tail do not come of that stage");
    for (const EdgeSpec& on_way : spec.edges) {
      const bool inside =
          on_way.to != e.join && comes_of(spec, on_way.to, e.join) && (leads[at(on_way.to)] >> e.to & 1U) != 0;
      need(!on_way.falls_back || (on_way.to != e.to && !inside), "falls_back: not on the way of rows that join");
    }
    const auto others = std::count_if(spec.edges.begin(), spec.edges.end(),
                                      [&](const EdgeSpec& other) { return other.from == e.from; });
    need(&e == &main || others == 1, "join: a tail makes nothing else, but that of a stage's first edge");
  }
}

}  // namespace

void validate(const Spec& spec) {
  const auto stages = static_cast<std::int32_t>(spec.stages.size());
  need(stages >= 1 && stages <= kMaxStages, "stages: " + std::to_string(stages) + " is not 1 to 16");
  std::vector<bool> used(dispatch::kVariants);
  for (std::int32_t s = 0; s < stages; ++s) {
    const std::string where = "stage " + std::to_string(s) + ": ";
    const auto variants = static_cast<std::int32_t>(spec.stages[at(s)].variants.size());
    need(variants > 0, where + "it has no variants");
    need(spec.stages[at(s)].line >= -1 && spec.stages[at(s)].line < variants, where + "line: must be a variant, or -1");
    for (const VariantSpec& v : spec.stages[at(s)].variants) {
      need(v.id < dispatch::kVariants, where + "variant id: out of range");
      need(!used[v.id], where + "variant id " + std::to_string(v.id) + " is there twice");
      used[v.id] = true;
      need(v.accuracy >= 0 && v.accuracy <= 1, where + "accuracy: must be 0 to 1");
      need(v.least > 0, where + "least: must be above 0");
      need(std::isfinite(v.work) && v.work > 0, where + "work: must be above 0");
      need(std::isfinite(v.energy) && v.energy >= 0, where + "energy: must be at least 0");
    }
  }
  std::vector<int> reached(spec.stages.size());
  for (const EdgeSpec& e : spec.edges) {
    need(e.from >= 0 && e.from < e.to && e.to < stages, "edges: each leads from a stage to a later one");
    ++reached[at(e.to)];
    need(e.factor.size() == spec.stages[at(e.from)].variants.size(), "factor: one for each variant of the tail");
    for (const double r : e.factor) need(std::isfinite(r) && r >= 0, "factor: must be at least 0");
    need(e.hop >= 0, "hop: must be at least 0");
    need(e.join >= -1 && e.join < e.from, "join: must be a stage before the edge's tail, or -1");
  }
  need(reached[0] == 0, "edges: none leads to the first stage");
  for (std::int32_t s = 1; s < stages; ++s) need(reached[at(s)] > 0, "edges: one leads to each stage but the first");
  validate_joins(spec, reached);
  need(spec.max_open >= 1, "max_open: must be at least 1");
  std::vector<std::size_t> nodes(spec.stages.size());
  std::size_t all = nodes[0] = spec.stages[0].variants.size();
  for (std::int32_t s = 1; s < stages; ++s) {
    nodes[at(s)] = nodes[at(edge_to(spec, s).from)] * spec.stages[at(s)].variants.size();
    all += nodes[at(s)];
    need(all <= kMaxNodes, "stages: more than 65,536 choices of variants");
  }
  need(spec.accuracy.empty() || spec.accuracy.size() == all, "accuracy: one for each prefix");
  for (const double a : spec.accuracy) need(a >= 0 && a <= 1, "accuracy: must be 0 to 1");
}

void validate(const Plan& plan, const Spec& spec) {
  const Tree tree(spec);
  const auto nodes = std::size_t{tree.nodes()};
  const auto variants = at(tree.variants());
  const auto fits = [](std::size_t size, std::size_t wanted) { return size == 0 || size == wanted; };
  need(std::isfinite(plan.demand) && plan.demand >= 0, "demand: must be at least 0");
  need(std::isfinite(plan.price) && plan.price >= 0, "price: must be at least 0");
  need(fits(plan.share.size(), nodes), "share: one for each prefix");
  need(fits(plan.feasible.size(), nodes), "feasible: one for each prefix");
  need(fits(plan.rate.size(), variants), "rate: one for each variant");
  need(fits(plan.budget.size(), variants), "budget: one for each variant");
  need(fits(plan.time.size(), variants), "time: one for each variant");
  for (const double f : plan.share) need(std::isfinite(f) && f >= 0, "share: must be at least 0");
  for (const double q : plan.rate) need(std::isfinite(q) && q >= 0, "rate: must be at least 0");
  for (const TimeNs t : plan.budget) need(t >= 0, "budget: must be at least 0");
  for (const TimeNs t : plan.time) need(t > 0, "time: must be above 0");
}

Tree::Tree(const Spec& spec) {
  const auto stages = static_cast<std::int32_t>(spec.stages.size());
  stages_.resize(spec.stages.size());
  std::vector<std::int32_t> leaves(stages_.size());
  for (std::size_t e = 0; e < spec.edges.size(); ++e) {
    const EdgeSpec& edge = spec.edges[e];
    Stage& to = stages_[at(edge.to)];
    const bool first = to.edge < 0;
    auto& outs = first ? stages_[at(edge.from)].out : stages_[at(edge.from)].beside;
    outs.push_back({static_cast<std::int32_t>(e), edge.to, 1, edge.hop});
    if (edge.join >= 0) {
      to.leads |= 1U << edge.to;
      stages_[at(edge.join)].forks |= 1U << edge.to;
    }
    if (!first) continue;
    to.parent = edge.from;
    to.edge = static_cast<std::int32_t>(e);
    to.factor = edge.factor;
  }
  Node first = 0;
  for (std::int32_t s = 0; s < stages; ++s) {
    Stage& stage = stages_[at(s)];
    stage.variants = static_cast<std::int32_t>(spec.stages[at(s)].variants.size());
    stage.first_variant = static_cast<std::int32_t>(variants_.size());
    variants_.insert(variants_.end(), spec.stages[at(s)].variants.begin(), spec.stages[at(s)].variants.end());
    const Node before = stage.parent < 0 ? 1 : stages_[at(stage.parent)].end - stages_[at(stage.parent)].first;
    stage.first = first;
    stage.end = first += before * static_cast<Node>(stage.variants);
    stage.line = spec.stages[at(s)].line;
    stage.depth = stage.parent < 0 ? 1 : stages_[at(stage.parent)].depth + 1;
    if (stage.parent >= 0) {
      const EdgeSpec& edge = spec.edges[at(stage.edge)];
      stage.rows = stages_[at(edge.join >= 0 ? edge.join : edge.from)].rows + 1;
    }
  }
  for (std::int32_t s = stages - 1; s >= 0; --s) {
    Stage& stage = stages_[at(s)];
    TimeNs after = 0;
    for (const Out& out : stage.out) {
      leaves[at(s)] += leaves[at(out.to)];
      after = std::max(after, out.hop + stages_[at(out.to)].least);
      stage.leads |= stages_[at(out.to)].leads;
    }
    for (const Out& out : stage.beside) {
      after = std::max(after, out.hop + stages_[at(out.to)].least);
      stage.leads |= stages_[at(out.to)].leads;
    }
    if (stage.leaf()) leaves[at(s)] = 1;
    for (Out& out : stage.out) out.weight = static_cast<double>(leaves[at(out.to)]) / leaves[at(s)];
    TimeNs least = kNever;
    for (const VariantSpec& v : spec.stages[at(s)].variants) least = std::min(least, v.least);
    stage.least = least + after;
  }
  accuracy_ = spec.accuracy;
  accuracy_.resize(first);
  best_.resize(first);
  for (std::int32_t s = 0; s < stages && spec.accuracy.empty(); ++s) {
    const Stage& stage = stages_[at(s)];
    for (Node n = stage.first; n < stage.end; ++n) {
      accuracy_[n] = variant(variant_of(n, s)).accuracy * (stage.parent < 0 ? 1 : accuracy_[parent(n, s)]);
    }
  }
  for (std::int32_t s = stages - 1; s >= 0; --s) {
    const Stage& stage = stages_[at(s)];
    for (Node n = stage.first; n < stage.end; ++n) {
      if (stage.leaf()) best_[n] = accuracy_[n];
      for (const Out& out : stage.out) {
        const auto at_child = best_.begin() + block(n, out.to);
        best_[n] += out.weight * *std::max_element(at_child, at_child + this->stage(out.to).variants);
      }
    }
  }
}

BestWay best_way(const Tree& tree) {
  BestWay way;
  std::vector<Node> node(at(tree.stages()));
  std::vector<double> rows(at(tree.stages()), 1);
  std::vector<double> scale(at(tree.stages()), 1);  // of what a row comes of, over what the tree says
  std::vector<double> least(at(tree.stages()), 1);  // of the other branches, where rows join
  for (std::int32_t s = 0; s < tree.stages(); ++s) {
    const auto& stage = tree.stage(s);
    const Block block = stage.parent < 0 ? stage.first : tree.block(node[at(stage.parent)], s);
    node[at(s)] = block;
    for (Node n = block; n < block + static_cast<Node>(stage.variants); ++n) {
      if (tree.best(n) > tree.best(node[at(s)])) node[at(s)] = n;
    }
    way.variants.push_back(static_cast<std::int32_t>(node[at(s)] - block));
    for (std::int32_t v = 0; v < stage.variants; ++v) {
      const auto bit = static_cast<std::uint32_t>(stage.first_variant + v);
      if ((stage.line >= 0 || v == way.variants.back()) && bit < 64) way.may_take |= std::uint64_t{1} << bit;
    }
    if (stage.parent >= 0) {
      rows[at(s)] = rows[at(stage.parent)] * stage.factor[at(way.variants[at(stage.parent)])];
    }
    way.rows += rows[at(s)];
    if (stage.parent >= 0) scale[at(s)] = scale[at(stage.parent)];
    if (least[at(s)] < 1 && tree.accuracy(tree.parent(node[at(s)], s)) > 0) {
      scale[at(s)] = std::min(scale[at(s)], least[at(s)] / tree.accuracy(tree.parent(node[at(s)], s)));
    }
    const double accuracy = tree.accuracy(node[at(s)]) * scale[at(s)];
    for (const auto& out : stage.beside) least[at(out.to)] = std::min(least[at(out.to)], accuracy);
    if (stage.leaf() && stage.beside.empty()) way.accuracy = std::min(way.accuracy, accuracy);
  }
  return way;
}

}  // namespace arlo::flow::pipeline
