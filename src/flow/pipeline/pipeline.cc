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
      after_(spec_.stages.size()),
      must_(spec_.stages.size()),
      price_(at(tree_.variants())),
      capacity_(at(tree_.variants())),
      lengths_(spec_.stages.size(), 1) {
  chooses_ = spec_.follows_load;
  // Worker-seconds of a root by the most accurate variants, and by those that take least.
  double dear = 0;
  double cheap = 0;
  std::vector<double> rows_dear(spec_.stages.size(), 1);
  std::vector<double> rows_cheap(spec_.stages.size(), 1);
  std::vector<std::int32_t> best(spec_.stages.size());
  std::vector<std::int32_t> least(spec_.stages.size());
  for (std::int32_t s = 0; s < tree_.stages(); ++s) {
    const Tree::Stage& stage = tree_.stage(s);
    for (const Tree::Out& out : stage.out) {
      const TimeNs behind = out.hop + tree_.stage(out.to).least;
      after_[at(s)] = std::max(after_[at(s)], behind);
      if (!spec_.edges[at(out.edge)].falls_back) must_[at(s)] = std::max(must_[at(s)], behind);
    }
    deepest_ = std::max(deepest_, stage.depth);
    chooses_ = chooses_ || stage.variants > 1;
    for (std::int32_t v = 1; v < stage.variants; ++v) {
      const VariantSpec& x = tree_.variant(stage.first_variant + v);
      if (x.accuracy > tree_.variant(stage.first_variant + best[at(s)]).accuracy) best[at(s)] = v;
      if (x.work < tree_.variant(stage.first_variant + least[at(s)]).work) least[at(s)] = v;
    }
    if (stage.parent >= 0) {
      rows_dear[at(s)] = rows_dear[at(stage.parent)] * stage.factor[at(best[at(stage.parent)])];
      rows_cheap[at(s)] = rows_cheap[at(stage.parent)] * stage.factor[at(least[at(stage.parent)])];
    }
    dear += rows_dear[at(s)] * tree_.variant(stage.first_variant + best[at(s)]).work;
    cheap += rows_cheap[at(s)] * tree_.variant(stage.first_variant + least[at(s)]).work;
  }
  lowest_price_ = kLeastCost / dear;
  highest_price_ = kMostCost / cheap;
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
    if (visits_[v].state == State::kToEnter) {
      visits_[v].state = State::kDead;
      continue;
    }
    tell({.kind = Step::Kind::kCancel, .stage = visits_[v].stage, .root = id, .visit = v, .tag = root.tag});
    give_back(v);
  }
  tell({.kind = Step::Kind::kExit,
        .root = id,
        .tag = root.tag,
        .answered = root.answered,
        .dropped = root.dropped,
        .failed = failed || root.answered == 0,
        .accuracy = root.served > 0 ? root.accuracy / root.served : 0,
        .served = root.served});
  root.live = false;
  --live_roots_;
  free_roots_.push_back(id);
}

void Pipeline::drop(VisitId id, DropReason reason) {
  const Visit& visit = visits_[id];
  const RootId of = visit.root;
  Root& root = roots_[of];
  const bool kept = falls_back(visit, root);
  const Node before = kept ? tree_.parent(visit.block, visit.stage) : kNone;
  if (kept) {
    root.served += visit.worth;
    root.accuracy += visit.worth * tree_.accuracy(before);
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
        .utility = visit.worth});
  leave(id);
  give_back(id);
  if (spec_.on_drop == OnDrop::kFail && !kept) {
    end(of, true);
  } else if (root.open == 0) {
    end(of, false);
  }
}

void Pipeline::cancel(RootId root, TimeNs now) {
  look(now);
  if (root < roots_.size() && roots_[root].live) end(root, true);
}

void Pipeline::failed(VisitId visit, TimeNs now) {
  look(now);
  if (visits_[visit].state == State::kEntered) drop(visit, DropReason::kFailed);
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
    drop(id, why);
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
  std::int64_t count = 0;
  for (const Children& made : children) count += made.count;
  const std::int32_t variant = variant_of(visit, visit.node);
  const TimeNs overrun = plan_.budget.empty() ? 0 : now - visit.entered - plan_.budget[at(variant)];
  if (count > 0 && spec_.drop == Drop::kPerTask && overrun > 0) {
    drop(id, DropReason::kBudget);
    return;
  }
  if (count > 0 && root.open - 1 + count > spec_.max_open) {
    drop(id, DropReason::kFanout);
    return;
  }
  const Tree::Stage& stage = tree_.stage(visit.stage);
  double parted = 0;  // of its worth, what goes to children
  for (const Children& made : children) {
    const auto out =
        std::find_if(stage.out.begin(), stage.out.end(), [&](const Tree::Out& o) { return o.edge == made.edge; });
    if (out == stage.out.end() || made.count <= 0) continue;
    Visit child{.root = visit.root,
                .block = tree_.block(visit.node, out->to),
                .worth = visit.worth * out->weight / made.count,
                .entered = now,
                .overrun = overrun,
                .parent = made.tag,
                .length = made.length,
                .stage = static_cast<std::int16_t>(out->to),
                .edge = static_cast<std::int16_t>(made.edge),
                .state = State::kToEnter};
    parted += out->weight;
    for (child.index = 0; child.index < made.count; ++child.index) take(child);
  }
  if (parted < 1 - 1e-12) {  // what no edge took ends here
    roots_[visit.root].served += visit.worth * (1 - parted);
    roots_[visit.root].accuracy += visit.worth * (1 - parted) * tree_.accuracy(visit.node);
  }
  if (parted == 0) ++roots_[visit.root].answered;
  leave(id);
  give_back(id);
  if (roots_[visit.root].open == 0) end(visit.root, false);
}

bool Pipeline::pays(VisitId id, std::span<const std::int32_t> edges, double gain, bool planned) const {
  const Visit& visit = visits_[id];
  const Root& root = roots_[visit.root];
  if (tree_.accuracy(visit.node) < root.min_accuracy) return true;
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
      if (!good(root, n, v)) continue;
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
    drop(id, reason);
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
      // Late it would be worth less than the answer that is there.
      const TimeNs deadline = falls_back(visit, root) ? std::min(root.due, root.deadline) : root.deadline;
      return {less(root.due, after_[at(visit.stage)]), less(deadline, must_[at(visit.stage)])};
    }
    case Drop::kLast:
      return {kNever, tree_.stage(visit.stage).leaf() ? std::min(root.due, root.deadline) : kNever};
    default:
      return {kNever, kNever};
  }
}

// --- which variant

// For the client.
bool Pipeline::good(const Root& root, Node node, std::int32_t variant) const {
  return (variant >= 64 || ((root.may_take >> variant) & 1U) != 0) && tree_.best(node) >= root.min_accuracy;
}

// It is, and it has not refused the visit.
bool Pipeline::may(const Visit& visit, const Root& root, Node node) const {
  return ((visit.tried >> (node - visit.block)) & 1U) == 0 && good(root, node, variant_of(visit, node));
}

bool Pipeline::there(const Visit& visit, Node node) const {
  return scheduler_.fits_any(visit.length, tree_.variant(variant_of(visit, node)).id);
}

// The cost of what a row of this length takes at a variant beyond the mean of its stage's rows.
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

// Its row has an answer that is good enough for the client.
bool Pipeline::falls_back(const Visit& visit, const Root& root) const {
  return visit.edge >= 0 && spec_.edges[at(visit.edge)].falls_back &&
         tree_.accuracy(tree_.parent(visit.block, visit.stage)) >= root.min_accuracy;
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
  // None is there at all: it waits for one to come.
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

}  // namespace arlo::flow::pipeline
