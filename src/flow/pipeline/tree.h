// The prefixes of a pipeline: all choices of variants from the entry to a stage. Each is a *node*; the nodes of the
// variants that a visit may get at a stage, after the same choices, lie side by side and are a *block*.
//
// Nodes are numbered stage by stage, and within a stage by their variants, that of the entry first: the order of
// Flow.prefixes() in arlo/catalog/flow.py. So a child's number follows from its parent's.
#pragma once

#include <cstdint>
#include <vector>

#include "flow/pipeline/spec.h"

namespace arlo::flow::pipeline {

using Node = std::uint32_t;
using Block = std::uint32_t;  // its first node

class Tree {
 public:
  struct Out {
    std::int32_t edge;
    std::int32_t to;
    double weight;  // of the tail's worth, the part that its leaves have: they all count alike
    TimeNs hop;
  };
  struct Stage {
    std::int32_t variants = 0;
    std::int32_t first_variant = 0;  // of all variants, stage by stage
    std::int32_t line = -1;          // StageSpec::line
    Node first = 0;
    Node end = 0;
    std::int32_t parent = -1;
    std::int32_t edge = -1;  // that leads here
    std::int32_t depth = 1;  // stages up to here
    std::int32_t rows = 1;   // of which one of it comes, itself included: a joined row comes of the fork's
    TimeNs least = 0;        // from its entry to an exit, alone and by the quickest variants
    std::vector<Out> out;
    std::vector<Out> beside;     // to heads that another edge leads to in the tree (EdgeSpec::join)
    std::uint32_t leads = 0;     // bits: joining stages that rows of it lead to, itself included
    std::uint32_t forks = 0;     // bits: stages that join what comes of a row of it
    std::vector<double> factor;  // [variants of the parent]
    [[nodiscard]] bool leaf() const { return out.empty(); }
  };

  // The spec has been checked.
  explicit Tree(const Spec& spec);

  [[nodiscard]] Node nodes() const { return static_cast<Node>(accuracy_.size()); }
  [[nodiscard]] std::int32_t stages() const { return static_cast<std::int32_t>(stages_.size()); }
  [[nodiscard]] const Stage& stage(std::int32_t s) const { return stages_[static_cast<std::size_t>(s)]; }
  [[nodiscard]] std::int32_t variants() const { return static_cast<std::int32_t>(variants_.size()); }
  [[nodiscard]] const VariantSpec& variant(std::int32_t v) const { return variants_[static_cast<std::size_t>(v)]; }
  // Returns the block of a visit to a stage whose parent's visit took `node`.
  [[nodiscard]] Block block(Node node, std::int32_t to) const {
    const Stage& s = stage(to);
    return s.first + (node - stage(s.parent).first) * static_cast<Node>(s.variants);
  }
  [[nodiscard]] Node parent(Node node, std::int32_t s) const {
    const Stage& at = stage(s);
    return stage(at.parent).first + (node - at.first) / static_cast<Node>(at.variants);
  }
  // Of the stage, and of all variants.
  [[nodiscard]] std::int32_t variant_in_stage(Node node, std::int32_t s) const {
    const Stage& at = stage(s);
    return static_cast<std::int32_t>((node - at.first) % static_cast<Node>(at.variants));
  }
  [[nodiscard]] std::int32_t variant_of(Node node, std::int32_t s) const {
    return stage(s).first_variant + variant_in_stage(node, s);
  }
  [[nodiscard]] double accuracy(Node node) const { return accuracy_[node]; }  // of the path up to there
  [[nodiscard]] double best(Node node) const { return best_[node]; }          // mean over the leaves it can reach

 private:
  std::vector<Stage> stages_;
  std::vector<VariantSpec> variants_;
  std::vector<double> accuracy_;
  std::vector<double> best_;
};

// The most accurate way: for each stage the variant of highest reachable accuracy, given those before it.
struct BestWay {
  std::vector<std::int32_t> variants;  // [stages], in their stage
  std::uint64_t may_take = 0;          // as RootArrival has them; of stages with a line: all
  double accuracy = 1;                 // of its least accurate leaf; a joined row counts as its least accurate part
  double rows = 0;                     // that a root is expected to become, itself included
};
BestWay best_way(const Tree& tree);

}  // namespace arlo::flow::pipeline
