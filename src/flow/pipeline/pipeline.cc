#include "flow/pipeline/pipeline.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace arlo::flow::pipeline {
namespace {

TimeNs less(TimeNs time, TimeNs by) { return time == kNever ? kNever : time - by; }

}  // namespace

std::string_view drop_reason_name(DropReason reason) {
  constexpr std::string_view kNames[kDropReasons] = {"budget", "deadline", "overload", "fanout", "failed", "evicted"};
  return kNames[static_cast<std::size_t>(reason)];
}

Pipeline::Pipeline(const Spec& spec, dispatch::Scheduler& scheduler)
    : spec_((validate(spec), spec)),
      tree_(spec_),
      scheduler_(scheduler),
      values_(tree_),
      planned_(tree_),
      shares_(tree_),
      joins_(tree_),
      after_(spec_.stages.size()),
      must_(spec_.stages.size()),
      price_(at(tree_.variants())),
      capacity_(at(tree_.variants())),
      lengths_(spec_.stages.size(), 1) {
  chooses_ = spec_.follows_load;
  for (std::int32_t s = 0; s < tree_.stages(); ++s) {
    const Tree::Stage& stage = tree_.stage(s);
    for (const Tree::Out& out : stage.out) {
      const TimeNs behind = out.hop + tree_.stage(out.to).least;
      after_[at(s)] = std::max(after_[at(s)], behind);
      if (!spec_.edges[at(out.edge)].falls_back) must_[at(s)] = std::max(must_[at(s)], behind);
    }
    for (const Tree::Out& out : stage.beside) {
      after_[at(s)] = must_[at(s)] = std::max(after_[at(s)], out.hop + tree_.stage(out.to).least);
    }
    deepest_ = std::max(deepest_, stage.depth);
    chooses_ = chooses_ || stage.variants > 1;
  }
  // Worker-seconds of a root by the variants of each stage that come first in this order.
  const auto work_by = [this](auto before) {
    double work = 0;
    std::vector<double> rows(spec_.stages.size(), 1);
    std::vector<std::int32_t> taken(spec_.stages.size());
    for (std::int32_t s = 0; s < tree_.stages(); ++s) {
      const Tree::Stage& stage = tree_.stage(s);
      const auto& variants = spec_.stages[at(s)].variants;
      const auto first = std::min_element(variants.begin(), variants.end(), before);
      taken[at(s)] = static_cast<std::int32_t>(first - variants.begin());
      if (stage.parent >= 0) rows[at(s)] = rows[at(stage.parent)] * stage.factor[at(taken[at(stage.parent)])];
      work += rows[at(s)] * first->work;
    }
    return work;
  };
  lowest_price_ =
      kLeastCost / work_by([](const auto& one, const auto& other) { return one.accuracy > other.accuracy; });
  highest_price_ = kMostCost / work_by([](const auto& one, const auto& other) { return one.work < other.work; });
  base_price_ = lowest_price_;
  std::fill(price_.begin(), price_.end(), lowest_price_);
  values_.update(price_);
  planned_.update(price_);
  route();
}

void Pipeline::apply(const Plan& plan, TimeNs now) {
  validate(plan, spec_);
  plan_ = plan;
  base_price_ = std::clamp(plan.price, lowest_price_, highest_price_);
  const std::vector<double> base(price_.size(), base_price_);
  planned_.update(base);
  if (slack_ == kNever) {
    price_ = base;
    values_.update(price_);
  } else if (chooses_) {
    set_prices(now);
  }
  route();
}

void Pipeline::route() {
  by_length_ = false;
  for (std::int32_t v = 0; v < tree_.variants(); ++v) {
    const VariantSpec& variant = tree_.variant(v);
    const double rate = plan_.rate.empty() ? 1 / variant.work : plan_.rate[at(v)];
    capacity_[at(v)] = rate * scheduler_.active_of(variant.id);
    by_length_ = by_length_ || scheduler_.cost_of_length(1, variant.id) != 0;
  }
  if (spec_.router == Router::kMaf) {
    shares_.by_accuracy(plan_, capacity_);
  } else {
    shares_.by_plan(plan_, capacity_);
  }
}

TimeNs Pipeline::look(TimeNs now) {
  if (!chooses_) return kNever;
  if (now < next_look_) return next_look_;
  next_look_ = now + kLook;
  if (slack_ != kNever) set_prices(now);
  if (now >= next_table_) {
    next_table_ = now + kTable;
    route();
    shares_.refill(static_cast<double>(kTable) / 1e9);
  }
  return next_look_;
}

void Pipeline::set_prices(TimeNs now) {
  const double target = std::max(static_cast<double>(slack_) / deepest_ * kTargetWait, 1.0);
  for (std::int32_t s = 0; s < tree_.stages(); ++s) {
    const Tree::Stage& stage = tree_.stage(s);
    for (std::int32_t v = stage.first_variant; v < stage.first_variant + stage.variants; ++v) {
      const VariantSpec& variant = tree_.variant(v);
      const TimeNs waits = scheduler_.expected_wait(lengths_[at(s)], variant.id, now);
      const double wait = waits == kNever ? 0 : static_cast<double>(waits) / target;
      price_[at(v)] = std::clamp(base_price_ * std::exp(kSteep * (wait - 1)), lowest_price_, highest_price_);
    }
  }
  values_.update(price_);
}

TimeNs Pipeline::time(std::int32_t variant) const {
  return plan_.time.empty() ? tree_.variant(variant).least : plan_.time[at(variant)];
}

// --- roots and visits

VisitId Pipeline::take(const Visit& visit) {
  VisitId id = free_visit_;
  if (id == kNone) {
    id = static_cast<VisitId>(visits_.size());
    visits_.emplace_back();
  } else {
    free_visit_ = visits_[id].next;
  }
  visits_[id] = visit;
  Root& root = roots_[visit.root];
  visits_[id].next = root.visits;
  visits_[id].prev = kNone;
  if (root.visits != kNone) visits_[root.visits].prev = id;
  root.visits = id;
  ++root.open;
  joins_.hold(visit.group, visit.stage);
  pending_.push_back({id, kNone});
  return id;
}

// Out of its root's list.
void Pipeline::leave(VisitId id) {
  const Visit& visit = visits_[id];
  Root& root = roots_[visit.root];
  (visit.prev == kNone ? root.visits : visits_[visit.prev].next) = visit.next;
  if (visit.next != kNone) visits_[visit.next].prev = visit.prev;
  --root.open;
}

void Pipeline::give_back(VisitId id) {
  visits_[id].state = State::kGone;
  visits_[id].next = free_visit_;
  free_visit_ = id;
}

RootId Pipeline::arrive(const RootArrival& arrival, TimeNs now) {
  look(now);
  RootId id;
  if (free_roots_.empty()) {
    id = static_cast<RootId>(roots_.size());
    roots_.emplace_back();
  } else {
    id = free_roots_.back();
    free_roots_.pop_back();
  }
  Root& root = roots_[id];
  root = Root{};
  root.tag = arrival.tag;
  root.due = arrival.due;
  root.deadline = arrival.deadline;
  root.utility = arrival.utility;
  root.min_accuracy = arrival.min_accuracy;
  root.may_take = arrival.may_take;
  root.live = true;
  ++live_roots_;
  if (arrival.due != kNever) slack_ = std::max<TimeNs>(arrival.due - now - tree_.stage(0).least, 0);
  take({.root = id, .entered = now, .length = arrival.length, .state = State::kToEnter});
  return id;
}

void Pipeline::end(RootId id, bool failed) {
  Root& root = roots_[id];
  while (root.visits != kNone) {
    const VisitId v = root.visits;
    leave(v);
    if (visits_[v].state == State::kToEnter || visits_[v].state == State::kToJoin) {
      visits_[v].state = State::kDead;
      continue;
    }
    tell({.kind = Step::Kind::kCancel, .stage = visits_[v].stage, .root = id, .visit = v, .tag = root.tag});
    give_back(v);
  }
  tell({.kind = Step::Kind::kExit,
        .root = id,
        .tag = root.tag,
        .accuracy = root.served > 0 ? root.accuracy / root.served : 0,
        .answered = root.answered,
        .dropped = root.dropped,
        .failed = failed || root.answered == 0,
        .served = root.served});
  root.live = false;
  --live_roots_;
  joins_.free(root.groups);
  free_roots_.push_back(id);
}

void Pipeline::drop(VisitId id, DropReason reason, TimeNs now) {
  const Visit& visit = visits_[id];
  const RootId of = visit.root;
  Root& root = roots_[of];
  const bool kept = falls_back(visit, root);
  const Node before = kept ? tree_.parent(visit.block, visit.stage) : kNone;
  const double accuracy = kept ? tree_.accuracy(before) * visit.scale : 0;
  if (kept) {
    root.served += visit.worth;
    root.accuracy += visit.worth * accuracy;
    ++root.answered;
  } else {
    ++root.dropped;
  }
  tell({.kind = Step::Kind::kDrop,
        .reason = reason,
        .stage = visit.stage,
        .edge = visit.edge,
        .index = visit.index,
        .root = of,
        .visit = id,
        .node = before,
        .falls_back = kept,
        .tag = root.tag,
        .parent = visit.parent,
        .utility = visit.worth,
        .accuracy = accuracy});
  const Visit ended = visit;
  leave(id);
  give_back(id);
  if (spec_.on_drop == OnDrop::kFail && !kept) {
    end(of, true);
    return;
  }
  close(ended, 0, now);
  if (roots_[of].open == 0) end(of, false);
}

// A visit has ended. Each group that it was the last to hold makes a row, which first holds the groups around it.
void Pipeline::close(const Visit& visit, TimeNs overrun, TimeNs now) {
  const std::int32_t stage = visit.stage;
  for (Group g = joins_.of(visit.group, stage); g != kNone; g = joins_.of(joins_.outer(g), stage)) {
    if (!joins_.leave(g) || joins_.parts(g).empty()) continue;
    const std::int32_t head = joins_.head(g);
    const Node before = joins_.node(g);
    const double accuracy = tree_.accuracy(before);
    take({.root = visit.root,
          .block = tree_.block(before, head),
          .worth = joins_.worth(g),
          .entered = now,
          .overrun = overrun,
          .scale = accuracy > 0 ? joins_.accuracy(g) / accuracy : 1,  // where the tree says 0 it stays 0
          .group = joins_.outer(g),
          .made_of = g,
          .stage = static_cast<std::int16_t>(head),
          .edge = static_cast<std::int16_t>(tree_.stage(head).edge),
          .state = State::kToJoin});
  }
}

void Pipeline::joined(VisitId id, std::int32_t length, std::uint64_t tag, TimeNs now) {
  look(now);
  Visit& visit = visits_[id];
  if (visit.state != State::kJoining) return;
  visit.length = length;
  visit.parent = tag;
  visit.entered = now;
  visit.state = State::kToEnter;
  pending_.push_back({id, kNone});
}

void Pipeline::cancel(RootId root, TimeNs now) {
  look(now);
  if (root < roots_.size() && roots_[root].live) end(root, true);
}

void Pipeline::failed(VisitId visit, TimeNs now) {
  look(now);
  const State state = visits_[visit].state;
  if (state == State::kEntered || state == State::kJoining) drop(visit, DropReason::kFailed, now);
}

void Pipeline::again(VisitId id, TimeNs now) {
  look(now);
  if (visits_[id].state != State::kEntered) return;
  visits_[id].state = State::kToEnter;
  pending_.push_back({id, kNone});
}

void Pipeline::refused(VisitId id, DropReason why, TimeNs now) {
  look(now);
  Visit& visit = visits_[id];
  if (visit.state != State::kEntered) return;
  visit.tried |= std::uint64_t{1} << (visit.node - visit.block);
  if (spec_.drop != Drop::kSlack) {
    drop(id, why, now);
    return;
  }
  visit.state = State::kToEnter;
  visit.chosen = true;
  visit.why = why;
  pending_.push_back({id, kNone});
}

void Pipeline::finish(VisitId id, std::span<const Children> children, TimeNs now) {
  look(now);
  const Visit visit = visits_[id];
  if (visit.state != State::kEntered) return;
  Root& root = roots_[visit.root];
  std::int64_t count = 0;  // rows
  bool goes_on = false;
  std::uint32_t made_of = 0;  // stages that they are of, by bit
  for (const Children& made : children) {
    const EdgeSpec& edge = spec_.edges[at(made.edge)];
    goes_on = goes_on || made.count > 0;
    if (made.count <= 0 || edge.join >= 0) continue;
    count += made.count;
    made_of |= 1U << edge.to;
  }
  const std::int32_t variant = variant_of(visit, visit.node);
  const TimeNs overrun = plan_.budget.empty() ? 0 : now - visit.entered - plan_.budget[at(variant)];
  if (goes_on && spec_.drop == Drop::kPerTask && overrun > 0) {
    drop(id, DropReason::kBudget, now);
    return;
  }
  if (count > 0 && root.open - 1 + count > spec_.max_open) {
    drop(id, DropReason::kFanout, now);
    return;
  }
  const Tree::Stage& stage = tree_.stage(visit.stage);
  const double accuracy = this->accuracy(id);
  const double scale = scale_of(visit);
  Group group = visit.group;
  if (stage.forks != 0 && count > 0) group = joins_.fork(visit.stage, visit.node, made_of, group, &root.groups);
  double parted = 0;  // the part of its worth that goes on
  for (const Children& made : children) {
    if (made.count <= 0) continue;
    const EdgeSpec& edge = spec_.edges[at(made.edge)];
    const auto of_edge = [&](const Tree::Out& o) { return o.edge == made.edge; };
    auto out = std::find_if(stage.out.begin(), stage.out.end(), of_edge);
    if (out == stage.out.end()) {
      out = std::find_if(stage.beside.begin(), stage.beside.end(), of_edge);
      if (out == stage.beside.end()) continue;
    }
    parted += out->weight;
    if (edge.join >= 0) {
      const double worth = visit.worth * out->weight;
      joins_.add(visit.group, edge.to, {made.edge, made.tag}, visit.node, worth, worth * accuracy);
      continue;
    }
    Visit child{.root = visit.root,
                .block = tree_.block(visit.node, out->to),
                .worth = visit.worth * out->weight / made.count,
                .entered = now,
                .overrun = overrun,
                .parent = made.tag,
                .scale = scale,
                .group = group,
                .length = made.length,
                .stage = static_cast<std::int16_t>(out->to),
                .edge = static_cast<std::int16_t>(made.edge),
                .state = State::kToEnter};
    for (child.index = 0; child.index < made.count; ++child.index) take(child);
  }
  if (parted < 1 - 1e-12) {  // the part that no edge took ends here
    roots_[visit.root].served += visit.worth * (1 - parted);
    roots_[visit.root].accuracy += visit.worth * (1 - parted) * accuracy;
  }
  if (parted == 0) ++roots_[visit.root].answered;
  leave(id);
  give_back(id);
  close(visit, overrun, now);
  if (roots_[visit.root].open == 0) end(visit.root, false);
}

bool Pipeline::pays(VisitId id, std::span<const std::int32_t> edges, double gain, bool planned) const {
  const Visit& visit = visits_[id];
  const Root& root = roots_[visit.root];
  if (accuracy(id) + kRounding < root.min_accuracy) return true;
  const Values& values = planned ? planned_ : values_;
  const double k = planned ? 1 : visit.worth * root.utility;
  double value = 0;  // by the means of accuracy, less what it costs
  double most = 0;   // of these means
  double weight = 0;
  for (const Tree::Out& out : tree_.stage(visit.stage).out) {
    if (std::find(edges.begin(), edges.end(), out.edge) == edges.end()) continue;
    const Block block = tree_.block(visit.node, out.to);
    double best = -std::numeric_limits<double>::infinity();
    double top = 0;
    for (Node n = block; n < block + static_cast<Node>(tree_.stage(out.to).variants); ++n) {
      const std::int32_t v = tree_.stage(out.to).first_variant + static_cast<std::int32_t>(n - block);
      if (!good(visit, root, n, v)) continue;
      double worth = values.of(n, k * out.weight);
      if (!planned && spec_.edges[at(out.edge)].falls_back) {  // the same row goes on
        worth -= beyond_mean(v, visit.length);
      }
      best = std::max(best, worth);
      top = std::max(top, tree_.best(n));
    }
    value += best;
    most += out.weight * top;
    weight += out.weight;
  }
  return value + k * (weight * gain - most) > 0;
}

// --- steps

bool Pipeline::next(TimeNs now, Step& step) {
  while (head_ < pending_.size()) {
    const Pending first = pending_[head_++];
    if (first.told != kNone) step = told_[first.told];
    if (head_ == pending_.size()) {
      pending_.clear();
      told_.clear();
      head_ = 0;
    }
    if (first.told != kNone) return true;
    if (visits_[first.visit].state == State::kDead) {
      give_back(first.visit);
    } else if (visits_[first.visit].state == State::kToJoin) {
      Visit& visit = visits_[first.visit];
      visit.state = State::kJoining;
      step = {.kind = Step::Kind::kJoin,
              .stage = visit.stage,
              .edge = visit.edge,
              .root = visit.root,
              .visit = first.visit,
              .tag = roots_[visit.root].tag};
      return true;
    } else if (enter(first.visit, now, step)) {
      return true;
    }
  }
  return false;
}

void Pipeline::tell(const Step& step) {
  pending_.push_back({kNone, static_cast<std::uint32_t>(told_.size())});
  told_.push_back(step);
}

bool Pipeline::enter(VisitId id, TimeNs now, Step& step) {
  Visit& visit = visits_[id];
  const Root& root = roots_[visit.root];
  DropReason reason = visit.chosen ? visit.why : DropReason::kOverload;
  const Limits limits = limits_of(visit, root);
  const Choice choice = choose(visit, root, limits, now, &reason);
  if (choice.node == kNone) {
    drop(id, reason, now);
    return false;
  }
  const Node before = visit.chosen ? visit.node : choice.from;
  visit.node = choice.node;
  visit.state = State::kEntered;
  lengths_[at(visit.stage)] = visit.length;
  step = {.kind = Step::Kind::kEnter,
          .follows = visit.stage > 0,
          .variant = tree_.variant(variant_of(visit, visit.node)).id,
          .stage = visit.stage,
          .edge = visit.edge,
          .index = visit.index,
          .length = visit.length,
          .from = before == kNone ? -1 : static_cast<std::int32_t>(before - visit.block),
          .root = visit.root,
          .visit = id,
          .node = visit.node,
          .tag = root.tag,
          .parent = visit.parent,
          .utility = visit.worth * root.utility,
          .due = limits.due,
          .deadline = limits.deadline};
  return true;
}

Pipeline::Limits Pipeline::limits_of(const Visit& visit, const Root& root) const {
  switch (spec_.drop) {
    case Drop::kSlack: {
      // A late answer would be worth less than the present one.
      const TimeNs deadline = falls_back(visit, root) ? std::min(root.due, root.deadline) : root.deadline;
      return {less(root.due, after_[at(visit.stage)]), less(deadline, must_[at(visit.stage)])};
    }
    case Drop::kLast:
      return {kNever, tree_.stage(visit.stage).leaf() ? std::min(root.due, root.deadline) : kNever};
    default:
      return {kNever, kNever};
  }
}

}  // namespace arlo::flow::pipeline
