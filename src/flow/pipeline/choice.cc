// Chooses the variant of a visit: the router's choice, among variants that can be on time; and a row's edges.
#include <algorithm>
#include <limits>

#include "flow/pipeline/pipeline.h"

namespace arlo::flow::pipeline {

// For the client.
bool Pipeline::good(const Visit& visit, const Root& root, Node node, std::int32_t variant) const {
  return (variant >= 64 || ((root.may_take >> variant) & 1U) != 0) &&
         tree_.best(node) * scale_of(visit) + kRounding >= root.min_accuracy;
}

// It is, and it has not refused the visit.
bool Pipeline::may(const Visit& visit, const Root& root, Node node) const {
  return ((visit.tried >> (node - visit.block)) & 1U) == 0 && good(visit, root, node, variant_of(visit, node));
}

bool Pipeline::there(const Visit& visit, Node node) const {
  return scheduler_.fits_any(visit.length, tree_.variant(variant_of(visit, node)).id);
}

// Returns the cost of a row of this length at a variant, beyond that of its stage's mean row.
double Pipeline::beyond_mean(std::int32_t variant, std::int32_t length) const {
  const VariantSpec& spec = tree_.variant(variant);
  const TimeNs own = scheduler_.cost_of_length(length, spec.id);
  if (own == 0 || own == kNever) return 0;
  return (price_[at(variant)] + spec.energy) * (static_cast<double>(own) / 1e9 - spec.work);
}

double Pipeline::worth(const Visit& visit, Node node, double k) const {
  return values_.of(node, k) - (by_length_ ? beyond_mean(variant_of(visit, node), visit.length) : 0);
}

bool Pipeline::any_there(const Visit& visit) const {
  const Node end = visit.block + static_cast<Node>(tree_.stage(visit.stage).variants);
  for (Node n = visit.block; n < end; ++n) {
    if (there(visit, n)) return true;
  }
  return false;
}

// True when its row has an answer that is good enough for the client.
bool Pipeline::falls_back(const Visit& visit, const Root& root) const {
  return visit.edge >= 0 && spec_.edges[at(visit.edge)].falls_back &&
         tree_.accuracy(tree_.parent(visit.block, visit.stage)) * visit.scale + kRounding >= root.min_accuracy;
}

TimeNs Pipeline::expected(const Visit& visit, Node node, const Limits& limits, TimeNs now) const {
  return scheduler_.expected_finish({.length = visit.length,
                                     .due = limits.due,
                                     .deadline = limits.deadline,
                                     .variant = tree_.variant(variant_of(visit, node)).id,
                                     .follows = visit.stage > 0},
                                    now);
}

Pipeline::Choice Pipeline::choose(const Visit& visit, const Root& root, const Limits& limits, TimeNs now,
                                  DropReason* reason) {
  const Tree::Stage& stage = tree_.stage(visit.stage);
  const Node end = visit.block + static_cast<Node>(stage.variants);
  if (falls_back(visit, root) && !any_there(visit)) return {};
  if (stage.variants == 1) {
    return {may(visit, root, visit.block) ? visit.block : kNone};  // the scheduler knows what there is to know
  }
  if (stage.line >= 0) {
    const Node line = visit.block + static_cast<Node>(stage.line);
    const bool refused = ((visit.tried >> stage.line) & 1U) != 0;
    if (refused) return {};
    if (may(visit, root, line)) return {line};
  }
  Node wanted = kNone;
  const double k = visit.worth * root.utility;
  if (spec_.router == Router::kPrice || visit.chosen) {
    double most = -std::numeric_limits<double>::infinity();
    bool present = false;
    for (Node n = visit.block; n < end; ++n) {
      if (!may(visit, root, n)) continue;
      const bool is_there = there(visit, n);
      const double worth = this->worth(visit, n, k);
      if (present > is_there || (present == is_there && worth <= most)) continue;
      present = is_there;
      most = worth;
      wanted = n;
    }
  } else {
    wanted = shares_.next(visit.block, stage.variants);
    if (!may(visit, root, wanted)) {
      const Node instead = wanted;
      wanted = kNone;
      for (Node n = visit.block; n < end; ++n) {
        if (n != instead && may(visit, root, n) && (wanted == kNone || there(visit, n))) wanted = n;
      }
    }
  }
  if (wanted == kNone) return {};
  if (spec_.drop == Drop::kReroute && visit.overrun > 0) {
    const Node other = backup(visit, root, wanted);
    if (other == kNone) *reason = DropReason::kBudget;
    return {other, other == wanted ? kNone : wanted};
  }
  if (spec_.drop == Drop::kSlack) return in_time(visit, root, wanted, limits, now, reason);
  return {wanted};
}

Pipeline::Choice Pipeline::in_time(const Visit& visit, const Root& root, Node wanted, const Limits& limits, TimeNs now,
                                   DropReason* reason) {
  if (limits.due == kNever && limits.deadline == kNever) return {wanted};
  const TimeNs due = std::min(limits.due, limits.deadline);
  const TimeNs first = expected(visit, wanted, limits, now);
  if (first <= due) return {wanted};
  Node best = kNone;
  Node soonest = wanted;
  TimeNs finish = first;
  double most = 0;
  const double k = visit.worth * root.utility;
  const Node end = visit.block + static_cast<Node>(tree_.stage(visit.stage).variants);
  for (Node n = visit.block; n < end; ++n) {
    if (n == wanted || !may(visit, root, n)) continue;
    const TimeNs at = expected(visit, n, limits, now);
    if (at < finish) {
      finish = at;
      soonest = n;
    }
    if (at > due) continue;
    const double worth = this->worth(visit, n, k);
    if (best != kNone && worth <= most) continue;
    best = n;
    most = worth;
  }
  if (best != kNone) return {best, wanted};
  // No variant is available: it waits for one to come.
  if (finish == kNever || finish <= limits.deadline) return {soonest, soonest == wanted ? kNone : wanted};
  *reason = DropReason::kDeadline;
  return {};
}

Node Pipeline::backup(const Visit& visit, const Root& root, Node wanted) {
  const TimeNs most = time(variant_of(visit, wanted)) - visit.overrun;
  const Node end = visit.block + static_cast<Node>(tree_.stage(visit.stage).variants);
  Node best = kNone;
  double load = 0;
  for (Node n = visit.block; n < end; ++n) {
    const std::int32_t v = variant_of(visit, n);
    if (!may(visit, root, n) || time(v) > most || !shares_.has_token(v) || !there(visit, n)) continue;
    const VariantSpec& variant = tree_.variant(v);
    const double loaded = static_cast<double>(scheduler_.queued_of(variant.id) + scheduler_.in_flight_of(variant.id)) /
                          std::max(scheduler_.active_of(variant.id), 1);
    if (best != kNone) {
      const double accuracy = tree_.variant(variant_of(visit, best)).accuracy;
      if (variant.accuracy < accuracy || (variant.accuracy == accuracy && loaded >= load)) continue;
    }
    best = n;
    load = loaded;
  }
  if (best != kNone) shares_.take_token(variant_of(visit, best));
  return best;
}

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
