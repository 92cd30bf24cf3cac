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

void check_edges(const Pipeline& given) {
  const auto& stages = given.spec.stages;
  need(given.edges.size() == given.spec.edges.size(), "edges: one for each of the pipeline's");
  need(given.exits.empty() || given.exits.size() == stages.size(), "exits: one for each stage");
  for (std::size_t s = 0; s < given.exits.size(); ++s) {
    need(given.exits[s].size() == stages[s].variants.size(), "exits: one for each variant");
    for (const double x : given.exits[s]) need(x >= 0 && x <= 1, "exits: must be 0 to 1");
  }
  for (std::size_t e = 0; e < given.edges.size(); ++e) {
    const Pipeline::Edge& edge = given.edges[e];
    const std::size_t variants = stages[static_cast<std::size_t>(given.spec.edges[e].from)].variants.size();
    need(edge.take.size() == variants && edge.mean.size() == variants, "take, mean: one for each variant of the tail");
    for (const double x : edge.take) need(x >= 0 && x <= 1, "take: must be 0 to 1");
    for (const double x : edge.mean) need(x >= 0 && x <= 1e4, "mean: must be 0 to 10,000");
    need(edge.max >= 1, "max: must be at least 1");
    for (const auto& [length, share] : edge.lengths) need(length >= 1 && share >= 0, "lengths: at least 1, a share");
    for (const std::int32_t n : edge.counts) need(n >= 0, "counts: must be at least 0");
  }
}

void check_rows(const Pipeline& given, std::size_t nodes) {
  if (!given.rows) return;
  const auto& rows = *given.rows;
  const auto& stages = given.spec.stages;
  const auto& edges = given.spec.edges;
  need(rows.count > 0, "rows: there are none");
  need(rows.right.size() == nodes * rows.count, "right: must be [prefixes, rows]");
  need(rows.stages.size() == stages.size(), "rows: one of each stage");
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& stage = rows.stages[s];
    const std::size_t variants = stages[s].variants.size();
    need(stage.scores.size() == stage.guards.size() * variants * rows.count,
         "scores: must be [guards, variants, rows]");
    need(stage.guards.empty() || stage.labels.size() == variants * rows.count, "labels: must be [variants, rows]");
    for (const auto& guard : stage.guards) {
      const bool own =
          guard.edge < 0 || (guard.edge < static_cast<std::int32_t>(edges.size()) &&
                             edges[static_cast<std::size_t>(guard.edge)].from == static_cast<std::int32_t>(s));
      need(own, "guards: must be of edges of their stage");
      need(!guard.follows_load() || guard.gain.size() == variants, "gain: one for each variant");
      for (const auto& curve : guard.gain) need(!curve.empty(), "gain: at least one point");
    }
  }
}

}  // namespace

Roots::Roots(Core& core, Pipeline pipeline)
    : Rows(core), given_(std::move(pipeline)), pipeline_(given_.spec, core.scheduler) {
  check_edges(given_);
  check_rows(given_, pipeline_.tree().nodes());
  for (const Pipeline::Edge& edge : given_.edges) {
    mean_count_.push_back(1);
    if (edge.kind != Pipeline::Children::kEmpirical && edge.kind != Pipeline::Children::kTrace) continue;
    const double all = std::accumulate(edge.counts.begin(), edge.counts.end(), 0.0);
    need(all > 0, "counts: one must be above 0");
    mean_count_.back() = all / static_cast<double>(edge.counts.size());
  }
  std::size_t variants = 0;
  for (const auto& stage : given_.spec.stages) variants += stage.variants.size();
  totals.visits.resize(variants);
  totals.made.resize(variants);
  totals.by_length.resize(variants);
  for (auto& made : totals.made) made.children.resize(given_.edges.size());
}

std::size_t Roots::row(Slot root) const {
  return static_cast<std::size_t>(even(mixed(c_.requests.luck(c_.requests[root].number) + 7)) *
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
                             scores_, {.row = c_.requests[root].number, .length = c_.requests[root].length}, pipeline_,
                             visit, taken_);
  for (auto& t : taken_) t = stage.guards[static_cast<std::size_t>(t)].edge;
  return true;
}

// An answer that counts, of this part of its root's worth.
void Roots::count_leaf(Slot root, flow::pipeline::Node node, double accuracy, double part) {
  double right = accuracy;
  if (given_.rows) {
    right = this->right(root, node) ? 1 : 0;
    roots_[root].served += part;
    roots_[root].right += part * right;
  }
  if (!counts(root)) return;
  ++(c_.now <= roots_[root].due ? totals.leaves_on_time : totals.leaves_late);
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
      drawn = c_.requests[root].number % size;
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

void Roots::arrive(Slot slot) {
  const Request& request = c_.requests[slot];
  const auto after = [&](TimeNs time) {
    return time == kNever ? kNever : c_.now + std::max<TimeNs>(time - c_.options.overhead, 0);
  };
  if (slot >= roots_.size()) roots_.resize(slot + std::size_t{1});
  Root& root = roots_[slot];
  root = {.due = after(c_.limits[request.variant].slo)};
  root.id = pipeline_.arrive(
      {.tag = slot, .length = request.length, .due = root.due, .deadline = after(given_.deadline)}, c_.now);
  walk();
  conclude_ended();
}

VisitId Roots::leave(Slot slot) {
  const VisitId visit = c_.requests[slot].visit;
  c_.requests.give_back(slot);
  return visit;
}

void Roots::answered(Slot slot) {
  const Request request = c_.requests[slot];
  const VisitId visit = leave(slot);
  if (visit == kNone) return;  // it was cancelled while it ran
  const auto& tree = pipeline_.tree();
  const std::int32_t stage = pipeline_.stage(visit);
  const auto variant = static_cast<std::size_t>(pipeline_.variant_in_stage(visit));
  c_.requests[request.root].runtime = request.runtime;
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
    count_leaf(request.root, pipeline_.node(visit), pipeline_.accuracy(visit), pipeline_.worth(visit));
  } else if (given_.rows) {
    double ends = 1;  // of its worth, what no edge took
    for (const auto& one : made_) {
      for (const auto& out : tree.stage(stage).out) ends -= out.edge == one.edge ? out.weight : 0;
      for (const auto& out : tree.stage(stage).beside) ends -= out.edge == one.edge ? out.weight : 0;
    }
    const double part = std::max(ends, 0.0) * pipeline_.worth(visit);
    roots_[request.root].served += part;
    roots_[request.root].right += right(request.root, pipeline_.node(visit)) ? part : 0;
  }
  pipeline_.finish(visit, made_, c_.now);
  walk();
  conclude_ended();
}

void Roots::unanswered(Slot slot, Outcome outcome, flow::Reason /*reason*/) {
  const VisitId visit = leave(slot);
  if (visit == kNone) return;
  if (outcome == Outcome::kExpired) {
    pipeline_.refused(visit, DropReason::kDeadline, c_.now);
  } else {
    pipeline_.failed(visit, c_.now);
  }
  walk();
  conclude_ended();
}

// Visits that no worker fits any more choose again.
void Roots::find_ways() {
  for (Slot slot = 0; slot < c_.requests.slots(); ++slot) {
    const Request& request = c_.requests[slot];
    if (!request.present || request.visit == kNone) continue;
    if (c_.scheduler.fits_any(request.length, request.variant)) continue;
    if (!c_.scheduler.cancel(request.handle, slot, c_.now, c_.actions)) continue;  // it runs, or has just expired
    pipeline_.again(leave(slot), c_.now);
    walk();
  }
  conclude_ended();
}

void Roots::give_up() {
  for (Slot slot = 0; slot < c_.requests.slots(); ++slot) {
    const Request& request = c_.requests[slot];
    if (!request.present || request.root != kNone) continue;
    pipeline_.cancel(roots_[slot].id, c_.now);
    walk();
  }
  conclude_ended();
}

void Roots::conclude_ended() {
  for (const auto [slot, failed] : ended_) {
    Request& root = c_.requests[slot];
    const bool late = latency(root) > c_.limits[root.variant].slo;
    if (counts(slot)) {
      ++totals.roots;
      ++(failed ? totals.failed : late ? totals.late : totals.on_time);
      totals.accuracy_sum += failed ? 0 : root.accuracy;
      totals.on_time_accuracy_sum += failed || late ? 0 : root.accuracy;
    }
    if (failed) {
      end(slot, root.reason < 0 ? Outcome::kFailed : Outcome::kExpired);
      continue;
    }
    root.begun = root.arrived;
    conclude(slot, latency(root));
  }
  ended_.clear();
}

void Roots::walk() {
  for (Step step; pipeline_.next(c_.now, step);) {
    switch (step.kind) {
      case Step::Kind::kEnter:
        enter(step);
        break;
      case Step::Kind::kJoin:
        join(step);
        break;
      case Step::Kind::kCancel: {
        const Slot slot = slot_of_visit_[step.visit];
        c_.requests[slot].visit = kNone;  // where it runs, its slot is free when it is through
        if (c_.scheduler.cancel(c_.requests[slot].handle, slot, c_.now, c_.actions)) c_.requests.give_back(slot);
        break;
      }
      case Step::Kind::kDrop: {
        const auto root = static_cast<Slot>(step.tag);
        if (step.falls_back) {
          count_leaf(root, step.node, step.accuracy, step.utility);
          totals.fell_back += counts(root) ? 1 : 0;
          break;
        }
        if (c_.requests[root].reason < 0) c_.requests[root].reason = static_cast<std::int8_t>(step.reason);
        if (counts(root)) ++totals.dropped[static_cast<std::size_t>(step.reason)];
        break;
      }
      case Step::Kind::kExit:
        exit(step);
        break;
    }
  }
}

void Roots::join(const Step& step) {
  std::uint64_t luck = 0;  // whichever part came last
  for (const auto& part : pipeline_.parts(step.visit)) luck += mixed(part.tag);
  const auto tail = given_.spec.edges[static_cast<std::size_t>(step.edge)].from;
  const auto first = static_cast<std::size_t>(pipeline_.tree().stage(tail).first_variant);
  ++totals.made[first].children[static_cast<std::size_t>(step.edge)];
  pipeline_.joined(step.visit, length(given_.edges[static_cast<std::size_t>(step.edge)], 1, luck), luck, c_.now);
}

void Roots::enter(const Step& step) {
  const auto root = static_cast<Slot>(step.tag);
  std::uint64_t luck = c_.requests.luck(c_.requests[root].number);
  if (step.edge >= 0) {
    luck =
        mixed(step.parent ^ (static_cast<std::uint64_t>(step.edge + 1) << 32) ^ static_cast<std::uint64_t>(step.index));
  }
  const Slot slot = c_.requests.take_visit(c_.now, step.length, luck);
  Request& request = c_.requests[slot];
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
  const auto admitted = admit(slot, {.length = step.length,
                                     .due = step.due,
                                     .deadline = step.deadline,
                                     .variant = step.variant,
                                     .follows = step.follows});
  if (admitted.handle != kNone) return;
  c_.requests.give_back(slot);
  const bool late = admitted.admission == dispatch::Admission::kTooLate;
  pipeline_.refused(step.visit, late ? DropReason::kDeadline : DropReason::kOverload, c_.now);
}

void Roots::exit(const Step& step) {
  const auto slot = static_cast<Slot>(step.tag);
  if (step.answered > 0) {
    const Root& root = roots_[slot];
    const double accuracy = given_.rows && root.served > 0 ? root.right / root.served : step.accuracy;
    c_.requests[slot].accuracy = static_cast<float>(accuracy);
  }
  if (counts(slot) && !step.failed && step.dropped > 0) ++totals.partial;
  ended_.push_back({slot, step.failed});
}

}  // namespace arlo::simulate
