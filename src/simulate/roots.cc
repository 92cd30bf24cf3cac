#include "simulate/roots.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "simulate/checks.h"

namespace arlo::simulate {

using dispatch::kNone;
using flow::pipeline::DropReason;
using flow::pipeline::Step;
using flow::pipeline::VisitId;

namespace {

constexpr double kMostChildren = 1e9;

// From 0 to below 1.
double even(std::uint64_t random) { return static_cast<double>(random >> 11) * 0x1p-53; }

// In parts, for e^-mean is 0 where the mean is large.
std::int32_t poisson(double mean, std::uint64_t luck) {
  const int parts = 1 + static_cast<int>(mean / 500);
  const double each = mean / parts;
  std::int32_t all = 0;
  for (int part = 0; part < parts; ++part, luck = mixed(luck)) {
    const double u = even(luck);
    double p = std::exp(-each);
    double below = p;
    std::int32_t count = 0;
    while (u >= below) {
      p *= each / ++count;
      below += p;
      if (count > each && p < 1e-17) break;
    }
    all += count;
  }
  return all;
}

std::int32_t one_of_two(double mean, double u) {
  const double whole = std::floor(mean);
  return static_cast<std::int32_t>(whole) + (u < mean - whole ? 1 : 0);
}

}  // namespace

Roots::Roots(Pipeline pipeline, dispatch::Scheduler& scheduler, dispatch::Actions& actions, Requests& requests,
             TimeNs warmup)
    : given_(std::move(pipeline)),
      scheduler_(scheduler),
      actions_(actions),
      requests_(requests),
      pipeline_(given_.spec, scheduler),
      warmup_(warmup) {
  const auto& stages = given_.spec.stages;
  need(given_.edges.size() == given_.spec.edges.size(), "edges: one for each of the pipeline's");
  need(given_.exits.empty() || given_.exits.size() == stages.size(), "exits: one for each stage");
  for (std::size_t s = 0; s < given_.exits.size(); ++s) {
    need(given_.exits[s].size() == stages[s].variants.size(), "exits: one for each variant");
    for (const double x : given_.exits[s]) need(x >= 0 && x <= 1, "exits: must be 0 to 1");
  }
  for (std::size_t e = 0; e < given_.edges.size(); ++e) {
    const Pipeline::Edge& edge = given_.edges[e];
    const std::size_t variants = stages[static_cast<std::size_t>(given_.spec.edges[e].from)].variants.size();
    need(edge.take.size() == variants && edge.mean.size() == variants, "take, mean: one for each variant of the tail");
    for (const double x : edge.take) need(x >= 0 && x <= 1, "take: must be 0 to 1");
    for (const double x : edge.mean) need(x >= 0 && x <= 1e4, "mean: must be 0 to 10,000");
    need(edge.max >= 1, "max: must be at least 1");
    for (const auto& [length, share] : edge.lengths) need(length >= 1 && share >= 0, "lengths: at least 1, a share");
    mean_count_.push_back(1);
    if (edge.kind != Pipeline::Children::kEmpirical && edge.kind != Pipeline::Children::kTrace) continue;
    need(std::all_of(edge.counts.begin(), edge.counts.end(), [](std::int32_t n) { return n >= 0; }),
         "counts: must be at least 0");
    const double all = std::accumulate(edge.counts.begin(), edge.counts.end(), 0.0);
    need(all > 0, "counts: one must be above 0");
    mean_count_.back() = all / static_cast<double>(edge.counts.size());
  }
  check_rows();
  std::int32_t variants = 0;
  for (const auto& stage : stages) variants += static_cast<std::int32_t>(stage.variants.size());
  totals.visits.resize(static_cast<std::size_t>(variants));
  totals.made.resize(static_cast<std::size_t>(variants));
  totals.by_length.resize(static_cast<std::size_t>(variants));
  for (auto& made : totals.made) made.children.resize(given_.spec.edges.size());
}

void Roots::check_rows() const {
  if (!given_.rows) return;
  const auto& rows = *given_.rows;
  const auto& stages = given_.spec.stages;
  need(rows.count > 0, "rows: there are none");
  need(rows.right.size() == std::size_t{pipeline_.tree().nodes()} * rows.count, "right: must be [prefixes, rows]");
  need(rows.stages.size() == stages.size(), "rows: one of each stage");
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& stage = rows.stages[s];
    const std::size_t variants = stages[s].variants.size();
    need(stage.scores.size() == stage.guards.size() * variants * rows.count,
         "scores: must be [guards, variants, rows]");
    need(stage.guards.empty() || stage.labels.size() == variants * rows.count, "labels: must be [variants, rows]");
    for (const auto& guard : stage.guards) {
      const bool own = guard.edge < 0 ||
                       (guard.edge < static_cast<std::int32_t>(given_.spec.edges.size()) &&
                        given_.spec.edges[static_cast<std::size_t>(guard.edge)].from == static_cast<std::int32_t>(s));
      need(own, "guards: must be of edges of their stage");
      need(!guard.follows_load() || guard.gain.size() == variants, "gain: one for each variant");
      for (const auto& curve : guard.gain) need(!curve.empty(), "gain: at least one point");
    }
  }
}

std::size_t Roots::row(Slot root) const {
  return static_cast<std::size_t>(even(mixed(requests_.luck(requests_[root].number) + 7)) *
                                  static_cast<double>(given_.rows->count));
}

bool Roots::right(Slot root, flow::pipeline::Node node) const {
  return given_.rows->right[std::size_t{node} * given_.rows->count + row(root)] != 0;
}

bool Roots::recorded_edges(Slot root, VisitId visit) {
  if (!given_.rows) return false;
  const auto s = static_cast<std::size_t>(pipeline_.stage(visit));
  const auto& stage = given_.rows->stages[s];
  if (stage.guards.empty()) return false;
  const auto variants = given_.spec.stages[s].variants.size();
  const auto variant = static_cast<std::size_t>(pipeline_.variant_in_stage(visit));
  scores_.clear();
  for (std::size_t g = 0; g < stage.guards.size(); ++g) {
    scores_.push_back(stage.scores[(g * variants + variant) * given_.rows->count + row(root)]);
  }
  flow::pipeline::take_edges(stage.guards, stage.first, variant, stage.labels[variant * given_.rows->count + row(root)],
                             scores_, {.row = requests_[root].number, .length = requests_[root].length}, pipeline_,
                             visit, taken_);
  for (auto& t : taken_) t = stage.guards[static_cast<std::size_t>(t)].edge;
  return true;
}

// An answer that counts, of this part of its root's worth.
void Roots::count_leaf(Slot root, flow::pipeline::Node node, double accuracy, double part, TimeNs now) {
  double right = accuracy;
  if (given_.rows) {
    right = this->right(root, node) ? 1 : 0;
    share_[root].served += part;
    share_[root].right += part * right;
  }
  if (!counts(root)) return;
  ++(now <= due_[root] ? totals.leaves_on_time : totals.leaves_late);
  totals.leaf_accuracy_sum += right;
}

std::int32_t Roots::children(std::size_t number, std::size_t variant, Slot root, std::uint64_t luck) const {
  const Pipeline::Edge& edge = given_.edges[number];
  const double mean = edge.mean[variant];
  const double u = even(luck);
  const std::size_t size = edge.counts.size();
  std::size_t drawn = 0;
  switch (edge.kind) {
    case Pipeline::Children::kConstant:
      return static_cast<std::int32_t>(std::lround(mean));
    case Pipeline::Children::kCeil:
      return one_of_two(mean, u);
    case Pipeline::Children::kPoisson:
      return poisson(mean, luck);
    case Pipeline::Children::kEmpirical:
      drawn = static_cast<std::size_t>(u * static_cast<double>(size));
      break;
    case Pipeline::Children::kTrace:
      drawn = requests_[root].number % size;
      break;
  }
  return one_of_two(std::min(edge.counts[drawn] * mean / mean_count_[number], kMostChildren), even(mixed(luck)));
}

std::int32_t Roots::length(const Pipeline::Edge& edge, std::int32_t parent, std::uint64_t luck) const {
  if (edge.lengths.empty()) return parent;
  double all = 0;
  for (const auto& [length, share] : edge.lengths) all += share;
  double left = even(mixed(luck + 2)) * all;
  for (const auto& [length, share] : edge.lengths) {
    if (left < share) return length;
    left -= share;
  }
  return edge.lengths.back().first;
}

void Roots::arrive(Slot slot, TimeNs due, TimeNs deadline, TimeNs now) {
  if (slot >= due_.size()) {
    due_.resize(slot + std::size_t{1});
    root_of_slot_.resize(due_.size(), kNone);
    share_.resize(due_.size());
  }
  due_[slot] = due;
  share_[slot] = {};
  root_of_slot_[slot] =
      pipeline_.arrive({.tag = slot, .length = requests_[slot].length, .due = due, .deadline = deadline}, now);
  walk(now);
}

VisitId Roots::leave(Slot slot) {
  const VisitId visit = requests_[slot].visit;
  requests_.give_back(slot);
  return visit;
}

void Roots::answered(Slot slot, TimeNs now) {
  const Request request = requests_[slot];
  const VisitId visit = leave(slot);
  if (visit == kNone) return;  // it was cancelled while it ran
  const auto& tree = pipeline_.tree();
  const std::int32_t stage = pipeline_.stage(visit);
  const auto variant = static_cast<std::size_t>(pipeline_.variant_in_stage(visit));
  requests_[request.root].runtime = request.runtime;
  made_.clear();
  const double u = even(mixed(request.luck));
  const bool recorded = recorded_edges(request.root, visit);
  const double exits = given_.exits.empty() || recorded ? 0 : given_.exits[static_cast<std::size_t>(stage)][variant];
  const auto take = [&](const auto& out) {
    const auto number = static_cast<std::size_t>(out.edge);
    const Pipeline::Edge& edge = given_.edges[number];
    const std::uint64_t luck = mixed(request.luck + static_cast<std::uint64_t>(out.edge) + 1);
    if (recorded) {
      if (std::find(taken_.begin(), taken_.end(), out.edge) == taken_.end()) return;
    } else if (edge.take[variant] < 1 && even(mixed(luck + 1)) * (1 - exits) >= edge.take[variant]) {
      return;
    }
    const bool joins = given_.spec.edges[number].join >= 0;
    const std::int32_t count = joins ? 1 : std::min(children(number, variant, request.root, luck), edge.max);
    if (count == 0) return;
    made_.push_back({out.edge, joins ? 1 : length(edge, request.length, luck), count, request.luck});
  };
  if (u >= exits) {
    for (const auto& out : tree.stage(stage).out) take(out);
    for (const auto& out : tree.stage(stage).beside) take(out);
  }
  auto& made = totals.made[static_cast<std::size_t>(tree.stage(stage).first_variant) + variant];
  ++made.answered;
  made.ended += made_.empty() ? 1 : 0;
  for (const auto& one : made_) {
    const auto e = static_cast<std::size_t>(one.edge);
    if (given_.spec.edges[e].join < 0) made.children[e] += static_cast<std::uint64_t>(one.count);
  }
  if (made_.empty()) {
    count_leaf(request.root, pipeline_.node(visit), pipeline_.accuracy(visit), pipeline_.worth(visit), now);
  } else if (given_.rows) {
    double ends = 1;  // of its worth, what no edge took
    for (const auto& one : made_) {
      for (const auto& out : tree.stage(stage).out) ends -= out.edge == one.edge ? out.weight : 0;
      for (const auto& out : tree.stage(stage).beside) ends -= out.edge == one.edge ? out.weight : 0;
    }
    Share& share = share_[request.root];
    share.served += std::max(ends, 0.0) * pipeline_.worth(visit);
    share.right += right(request.root, pipeline_.node(visit)) ? std::max(ends, 0.0) * pipeline_.worth(visit) : 0;
  }
  pipeline_.finish(visit, made_, now);
  walk(now);
}

void Roots::expired(Slot slot, TimeNs now) {
  const VisitId visit = leave(slot);
  if (visit == kNone) return;
  pipeline_.refused(visit, DropReason::kDeadline, now);
  walk(now);
}

void Roots::failed(Slot slot, TimeNs now) {
  const VisitId visit = leave(slot);
  if (visit == kNone) return;
  pipeline_.failed(visit, now);
  walk(now);
}

void Roots::find_ways(TimeNs now) {
  for (Slot slot = 0; slot < requests_.slots(); ++slot) {
    const Request& request = requests_[slot];
    if (!request.present || request.visit == kNone) continue;
    if (scheduler_.fits_any(request.length, request.variant)) continue;
    if (!scheduler_.cancel(request.handle, slot, now, actions_)) continue;  // it runs, or has just expired
    pipeline_.again(leave(slot), now);
    walk(now);
  }
}

void Roots::give_up(TimeNs now) {
  for (Slot slot = 0; slot < requests_.slots(); ++slot) {
    const Request& request = requests_[slot];
    if (!request.present || request.root != kNone) continue;
    pipeline_.cancel(root_of_slot_[slot], now);
    walk(now);
  }
}

void Roots::walk(TimeNs now) {
  for (Step step; pipeline_.next(now, step);) {
    switch (step.kind) {
      case Step::Kind::kEnter:
        enter(step, now);
        break;
      case Step::Kind::kJoin:
        join(step, now);
        break;
      case Step::Kind::kCancel: {
        const Slot slot = slot_of_visit_[step.visit];
        requests_[slot].visit = kNone;  // where it runs, its slot is free when it is through
        if (scheduler_.cancel(requests_[slot].handle, slot, now, actions_)) requests_.give_back(slot);
        break;
      }
      case Step::Kind::kDrop: {
        Request& root = requests_[static_cast<Slot>(step.tag)];
        if (step.falls_back) {
          count_leaf(static_cast<Slot>(step.tag), step.node, step.accuracy, step.utility, now);
          totals.fell_back += root.arrived >= warmup_ ? 1 : 0;
          break;
        }
        if (root.reason < 0) root.reason = static_cast<std::int8_t>(step.reason);
        if (root.arrived >= warmup_) ++totals.dropped[static_cast<std::size_t>(step.reason)];
        break;
      }
      case Step::Kind::kExit:
        exit(step);
        break;
    }
  }
}

void Roots::join(const Step& step, TimeNs now) {
  std::uint64_t luck = 0;  // whichever part came last
  for (const auto& part : pipeline_.parts(step.visit)) luck += mixed(part.tag);
  const auto tail = given_.spec.edges[static_cast<std::size_t>(step.edge)].from;
  const auto first = static_cast<std::size_t>(pipeline_.tree().stage(tail).first_variant);
  ++totals.made[first].children[static_cast<std::size_t>(step.edge)];
  pipeline_.joined(step.visit, length(given_.edges[static_cast<std::size_t>(step.edge)], 1, luck), luck, now);
}

void Roots::enter(const Step& step, TimeNs now) {
  const auto root = static_cast<Slot>(step.tag);
  std::uint64_t luck = requests_.luck(requests_[root].number);
  if (step.edge >= 0) {
    luck =
        mixed(step.parent ^ (static_cast<std::uint64_t>(step.edge + 1) << 32) ^ static_cast<std::uint64_t>(step.index));
  }
  const Slot slot = requests_.take_visit(now, step.length, luck);
  Request& request = requests_[slot];
  request.variant = step.variant;
  request.root = root;
  request.visit = step.visit;
  if (step.visit >= slot_of_visit_.size()) slot_of_visit_.resize(step.visit + std::size_t{1});
  slot_of_visit_[step.visit] = slot;
  const auto variant = static_cast<std::size_t>(pipeline_.tree().variant_of(step.node, step.stage));
  count_length(totals.by_length[variant], step.length);
  if (counts(root)) {
    ++totals.visits[variant];
    totals.rerouted += step.from >= 0 ? 1 : 0;
  }
  const auto admitted = scheduler_.arrive(slot,
                                          {.length = step.length,
                                           .due = step.due,
                                           .deadline = step.deadline,
                                           .variant = step.variant,
                                           .follows = step.follows},
                                          now, actions_);
  if (admitted.handle != kNone) {
    requests_[slot].handle = admitted.handle;
    return;
  }
  requests_.give_back(slot);
  const bool late = admitted.admission == dispatch::Admission::kTooLate;
  pipeline_.refused(step.visit, late ? DropReason::kDeadline : DropReason::kOverload, now);
}

void Roots::exit(const Step& step) {
  const auto slot = static_cast<Slot>(step.tag);
  if (step.answered > 0) {
    const Share& share = share_[slot];
    const double accuracy = given_.rows && share.served > 0 ? share.right / share.served : step.accuracy;
    requests_[slot].accuracy = static_cast<float>(accuracy);
  }
  root_of_slot_[slot] = kNone;
  if (counts(slot) && !step.failed && step.dropped > 0) ++totals.partial;
  ended.push_back({slot, step.failed});
}

}  // namespace arlo::simulate
