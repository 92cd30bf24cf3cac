#include "flow/pipeline/values.h"

#include <algorithm>

namespace arlo::flow::pipeline {

void Values::envelop(std::vector<Line>& lines) {
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.slope != b.slope ? a.slope < b.slope : a.cut > b.cut; });
  std::size_t kept = 0;
  for (const Line& line : lines) {
    if (kept > 0 && lines[kept - 1].slope == line.slope) continue;
    // The last one is nowhere above both of its neighbours, or only for k < 0.
    while (kept > 0) {
      const Line& last = lines[kept - 1];
      if (kept == 1 ? line.cut >= last.cut
                    : (line.cut - last.cut) * (last.slope - lines[kept - 2].slope) >=
                          (last.cut - lines[kept - 2].cut) * (line.slope - last.slope)) {
        --kept;
      } else {
        break;
      }
    }
    lines[kept++] = line;
  }
  lines.resize(kept);
}

// Adds the value of an edge to `sum_`: `factor` children on average, each worth its part of the weight; without
// children the row ends with its present accuracy.
void Values::add_block(std::int32_t to, Node node, double weight, double factor, double own) {
  const double part = std::min(factor, 1.0);  // of the weight, that children have
  block_.clear();
  const Block first = tree_.block(node, to);
  for (Node n = first; n < first + static_cast<Node>(tree_.stage(to).variants); ++n) {
    for (std::uint32_t i = nodes_[n].first; i < nodes_[n].end; ++i) {
      block_.push_back({lines_[i].slope * weight * part + (1 - part) * weight * own, lines_[i].cut * factor});
    }
  }
  envelop(block_);
  // The sum of two envelopes changes its line where one of them does.
  next_.clear();
  std::size_t i = 0;
  std::size_t j = 0;
  const auto turn = [](const std::vector<Line>& lines, std::size_t at) {
    return (lines[at].cut - lines[at + 1].cut) / (lines[at + 1].slope - lines[at].slope);
  };
  for (;;) {
    next_.push_back({sum_[i].slope + block_[j].slope, sum_[i].cut + block_[j].cut});
    const bool more_i = i + 1 < sum_.size();
    const bool more_j = j + 1 < block_.size();
    if (!more_i && !more_j) break;
    if (!more_j || (more_i && turn(sum_, i) <= turn(block_, j))) {
      ++i;
    } else {
      ++j;
    }
  }
  envelop(next_);
  sum_.swap(next_);
}

void Values::update(std::span<const double> price) {
  lines_.clear();
  for (std::int32_t s = tree_.stages() - 1; s >= 0; --s) {
    const Tree::Stage& stage = tree_.stage(s);
    for (Node n = stage.first; n < stage.end; ++n) {
      const std::int32_t v = tree_.variant_of(n, s);
      const double cost = (price[static_cast<std::size_t>(v)] + tree_.variant(v).energy) * tree_.variant(v).work;
      sum_.assign(1, {stage.leaf() ? tree_.accuracy(n) : 0, -cost});
      for (const Tree::Out& out : stage.out) {
        const double factor = tree_.stage(out.to).factor[static_cast<std::size_t>(tree_.variant_in_stage(n, s))];
        add_block(out.to, n, out.weight, factor, tree_.accuracy(n));
      }
      nodes_[n].first = static_cast<std::uint32_t>(lines_.size());
      lines_.insert(lines_.end(), sum_.begin(), sum_.end());
      nodes_[n].end = static_cast<std::uint32_t>(lines_.size());
    }
  }
}

}  // namespace arlo::flow::pipeline
