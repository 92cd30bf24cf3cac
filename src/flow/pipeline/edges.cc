#include "flow/pipeline/edges.h"

namespace arlo::flow::pipeline {

void take_edges(std::span<const Guard> guards, bool first, std::size_t variant, std::int32_t label,
                std::span<const double> scores, const RowFacts& row, const Pipeline& core, VisitId visit,
                std::vector<std::int32_t>& taken) {
  taken.clear();
  const auto hold = [&](std::size_t g) { return holds(guards[g], label, scores[g], row, core.stage(visit)); };
  const auto pays = [&](std::size_t g, std::span<const std::int32_t> edges) {
    const Guard& guard = guards[g];
    return core.pays(visit, edges, along(guard.gain[variant], scores[g]), guard.rule == Guard::Rule::kPlanned);
  };
  for (std::size_t g = 0; g < guards.size(); ++g) {
    const Guard& guard = guards[g];
    if (!hold(g)) continue;
    if (guard.edge < 0) {
      if (guard.follows_load()) continue;  // below: the other edges it could take are not known yet
      taken.clear();                       // what exits takes no other
      return;
    }
    if (first && !taken.empty()) continue;
    if (guard.follows_load() && !pays(g, {&guard.edge, 1})) continue;
    taken.push_back(static_cast<std::int32_t>(g));
  }
  if (taken.empty()) return;
  std::vector<std::int32_t> edges;
  for (std::size_t g = 0; g < guards.size(); ++g) {
    if (guards[g].edge >= 0 || !guards[g].follows_load() || !hold(g)) continue;
    if (edges.empty()) {
      for (const std::int32_t t : taken) edges.push_back(guards[static_cast<std::size_t>(t)].edge);
    }
    if (pays(g, edges)) continue;
    taken.clear();
    return;
  }
}

}  // namespace arlo::flow::pipeline
