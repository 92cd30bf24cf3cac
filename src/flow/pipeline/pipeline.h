// The journeys of rows through a pipeline: a rooted tree of stages, each of which turns a row into zero or more rows of
// the next ones (Loki, HPDC'24). Decisions only: events in, steps out; no threads, clocks, sockets or tensors.
//
// Words. A *root* is a client's row. It *visits* the entry, and its children visit the stages behind. A stage's
// variants are variants of the one dispatch::Scheduler, which owns lines, pools with late binding, batches, bundles and
// retries. The pipeline decides which variant a visit gets when it enters a stage, which visits are dropped, and when a
// root ends. It only queries the scheduler (expected_finish, expected_wait, fits_any, active_of); its caller makes the
// calls.
//
// How to use it. After each event take all steps, and carry each out before the next is taken, for a visit's variant is
// chosen when its step is taken, by what the scheduler says then:
//
//   const RootId root = pipeline.arrive({.tag = .., .length = .., .due = .., .deadline = ..}, now);
//   for (Step step; pipeline.next(now, step);) switch (step.kind) {
//     case Step::Kind::kEnter:  // the visit begins: keep step.visit with the request
//       admitted = scheduler.arrive(tag, {.length = step.length, .due = step.due, .deadline = step.deadline,
//                                         .variant = step.variant, .follows = step.follows}, now, actions);
//       if (admitted.handle == kNone) pipeline.refused(step.visit, why, now);
//     case Step::Kind::kJoin:   // all parts of a row of step.stage have come: pipeline.parts(step.visit); make it
//       pipeline.joined(step.visit, length, tag, now);  // or failed(), before the next step is taken
//     case Step::Kind::kCancel: // the visit is of no use any more: scheduler.cancel(), or let it run and ignore it;
//                               // beware of one whose kExpired is still to be read: its handle may be another's now
//     case Step::Kind::kDrop:   // it has been dropped; statistics only
//     case Step::Kind::kExit:   // the root has ended, once; answer the client
//   }
//
// The scheduler's news of a visit: kExpired -> refused(kDeadline); its answer -> scheduler.finish(), then finish() with
// the children that guards and expanders made of it; lost for good, or an answer that is an error -> failed(). A retry
// is between caller and scheduler. Between hold() and release() of the scheduler the children of one batch's rows go as
// batches. A visit's id is gone with its finish(), failed(), kDrop or kCancel; a root's with its kExit.
//
// Joins (joins.h). At an edge that joins, a row of the tail goes into a row of the head together with the others that
// came of the same row of the fork; its Children have count 1. When all have ended there is one visit at the head, made
// of those that came: it has the sum of their worth, and the mean of their accuracies before its own.
//
// Every root ends once: when none of its visits is left, or, with OnDrop::kFail, at its first drop; then its other
// visits are cancelled. A visit without children ends with its answer. One that came by an edge that falls back is
// never missed: where it is dropped the answer that its row had before counts (Step::falls_back), unless the client
// asked for more accuracy; it is not waited for beyond `due`, nor for workers to come. What a root is worth is parted
// among its leaves: each edge has the part of the leaves behind it, and children share it evenly.
//
// Time limits. `due` is when the root's answer is late, `deadline` when it is worth nothing. A visit's limits are these
// less the least time from its stage to an exit (Drop::kSlack); the scheduler refuses visits that cannot meet them.
// Under the drop rules of the paper a visit has no limits (kNone, kPerTask, kReroute), or has the root's `due`
// as its deadline at a last stage (kLast). Known difference: the paper drops at the last task when its turn comes, the
// scheduler refuses on arrival what its books say will be late.
//
// Drop::kSlack. Time that a stage did not use is carried over. The router's choice is taken if it can be on time:
// expected finish, hops and least time behind it within `due`. Else the visit is rerouted to the most valuable variant
// that can; else to the one that finishes first, if it makes the deadline; else it is dropped. So no visit is dropped
// that has a candidate in time, as far as the scheduler's books know. A visit that expires while it waits, or is
// refused, tries the variants that it has not tried.
//
// Router::kPrice weighs with prices (values.h), and with what a row of the visit's own length takes at the stage
// (Scheduler::cost_of_length); behind it rows take what the mean of their stages does. A worker-second costs its price
// and its energy. Prices are the plan's, moved between plans by what waits: every kLook a variant's price is set to the
// plan's times e^(1.5 (w - 1)), w being the work that waits for its instances, for any of their variants
// (expected_wait), in quarters of its stage's slack (a root's slack over the stages of the longest way). So at the
// plan's price variants are mixed by their queues, which stay short, and a burst makes them dear at once. Variants that
// share all of their instances have one price. Router::kPlan and kMaf follow tables (shares.h), recomputed every
// kTable for the present instances.
//
// Exits that follow the load. A row that could end with its answer goes on if that pays: utility x its gain in accuracy
// there, given its confidence, exceeds price x worker-seconds of the best way (pays()), with the head's time for the
// row's length. So the dearer time is, the less certain a row must be to go on. It uses the prices in force, or the
// plan's prices and means, for one threshold for all rows that stays constant between plans.
//
// Token counts. Where a stage's variants are a body of the scheduler's, a visit is not routed: it enters the body's
// line and gets its variant when its batch starts. A visit that the body refuses or evicts is dropped, because every
// other way through it would take longer. A visit whose root asks for more accuracy than the body's least is routed on
// arrival among the variants that are good enough.
//
// Order. Steps come in the order of the events that led to them; the children of a finish in the order of the spans
// given, and of their index. Events at one instant are given in the order leave, drain, finish, join, expire, cancel,
// arrive, as dispatch/scheduler.h asks. Same calls, same steps, to the last bit.
//
// Nothing is allocated in steady state but by apply(). O(variants of the stage) for a visit, and as many questions to
// the scheduler at most. Throws only from the constructor and apply() (std::invalid_argument). Threads: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/pipeline/joins.h"
#include "flow/pipeline/shares.h"
#include "flow/pipeline/spec.h"
#include "flow/pipeline/tree.h"
#include "flow/pipeline/values.h"
#include "flow/rules/guard.h"

namespace arlo::flow::pipeline {

using dispatch::kNone;
using RootId = std::uint32_t;   // dense, valid until the root's kExit; then reused
using VisitId = std::uint32_t;  // the same until the visit ends

struct RootArrival {
  std::uint64_t tag = 0;                       // the caller's, never interpreted
  std::int32_t length = 1;                     // tokens, at the entry
  TimeNs due = kNever;                         // an answer after it is late
  TimeNs deadline = kNever;                    // and after this one worth nothing; >= due where both are set
  double utility = 1;                          // of an answer that is right and in time, >= 0
  double min_accuracy = 0;                     // of the paths that it may take
  std::uint64_t may_take = ~std::uint64_t{0};  // variants, of all stages in order, by bit; those from 64 on: all
};

// What an edge made of a row.
struct Children {
  std::int32_t edge = 0;    // of Spec::edges, from the stage that answered
  std::int32_t length = 1;  // tokens of each
  std::int32_t count = 1;
  std::uint64_t tag = 0;  // the caller's, of the row that they come from; never interpreted
};

enum class DropReason : std::uint8_t {
  kBudget,    // its stage took longer than its budget (kPerTask, kReroute)
  kDeadline,  // no way left can be in time
  kOverload,  // the scheduler's queue is full
  kFanout,    // the root has too many visits
  kFailed,    // its worker failed it
  kEvicted,   // rows worth more go before it (StageSpec::line)
};
inline constexpr std::size_t kDropReasons = 6;
std::string_view drop_reason_name(DropReason reason);

struct Step {
  enum class Kind : std::uint8_t { kEnter, kJoin, kDrop, kCancel, kExit };
  Kind kind = Kind::kExit;
  DropReason reason = DropReason::kBudget;  // kDrop
  bool follows = false;                     // kEnter: not at the entry: never refused for a full queue
  dispatch::VariantId variant = 0;          // kEnter: the scheduler's
  std::int32_t stage = 0;                   // kEnter, kDrop
  std::int32_t edge = -1;                   // kEnter: that it came by; -1: the entry
  std::int32_t index = 0;                   // kEnter: among its siblings of that edge
  std::int32_t length = 0;                  // kEnter: tokens
  std::int32_t from = -1;                   // kEnter: variant in its stage that it was rerouted from; -1: it was not
  RootId root = kNone;
  VisitId visit = kNone;     // kNone for kExit
  Node node = kNone;         // kEnter: the variants of its way so far, this one included; kDrop that falls back: before
  bool falls_back = false;   // kDrop: the answer before it counts
  std::uint64_t tag = 0;     // the root's
  std::uint64_t parent = 0;  // kEnter, kDrop: tag of the Children that it is one of, or what joined() said
  double utility = 1;        // kEnter: for the scheduler, as the next two; kDrop: part of the root's worth
  TimeNs due = kNever;
  TimeNs deadline = kNever;
  double accuracy = 0;  // expected. kDrop that falls back: of the answer before; kExit: mean over leaves that have
                        // answered, by their worth
  // kExit. For a root that failed, `answered` counts the leaves before the failure.
  std::int32_t answered = 0;  // leaves
  std::int32_t dropped = 0;   // visits that nothing stands for
  bool failed = false;        // a drop has ended it, or it has no answer at all
  double served = 0;          // part of its worth that has been answered, 0 to 1
};

class Pipeline {
 public:
  static constexpr TimeNs kLook = 20'000'000;    // between looks at prices
  static constexpr TimeNs kTable = 100'000'000;  // between new tables

  // The scheduler lives as long as the pipeline, which never changes what waits there. Throws std::invalid_argument.
  Pipeline(const Spec& spec, dispatch::Scheduler& scheduler);

  // A plan in force from now on. Throws std::invalid_argument.
  void apply(const Plan& plan, TimeNs now);
  // Updates prices and tables if due, and returns when they are due next. The caller calls it then, as do events.
  TimeNs look(TimeNs now);

  RootId arrive(const RootArrival& arrival, TimeNs now);
  // The visit has started as this variant of its stage, another one of the body in whose line it waited.
  void took(VisitId visit, std::int32_t variant) {
    visits_[visit].node = visits_[visit].block + static_cast<Node>(variant);
  }
  void finish(VisitId visit, std::span<const Children> children, TimeNs now);
  // Valid from kJoin until the root ends: the rows that go into this one, in the order in which they came.
  [[nodiscard]] std::span<const Joins::Part> parts(VisitId visit) const { return joins_.parts(visits_[visit].made_of); }
  // The joined row has been made, with so many tokens.
  void joined(VisitId visit, std::int32_t length, std::uint64_t tag, TimeNs now);
  // Returns whether an answered row that may end there is better sent along these edges. `gain`: the increase in the
  // share of right answers among rows like it, by the most accurate way. `planned`: by the plan's prices, for a
  // row of utility 1. True where its answer is not as accurate as the client wants.
  [[nodiscard]] bool pays(VisitId visit, std::span<const std::int32_t> edges, double gain, bool planned) const;
  void failed(VisitId visit, TimeNs now);
  // The scheduler has refused the visit, or it has expired. `why`: kDeadline, kOverload, kEvicted.
  void refused(VisitId visit, DropReason why, TimeNs now);
  // The workers of its variant have gone, and the caller has cancelled it there: it chooses again.
  void again(VisitId visit, TimeNs now);
  // The client has gone: its visits are cancelled (kCancel), and it ends (kExit, failed).
  void cancel(RootId root, TimeNs now);
  bool next(TimeNs now, Step& step);

  [[nodiscard]] const Tree& tree() const { return tree_; }
  [[nodiscard]] const Spec& spec() const { return spec_; }
  // Price of capacity, without the cost of energy (VariantSpec::energy).
  [[nodiscard]] double price(std::int32_t variant) const { return price_[static_cast<std::size_t>(variant)]; }
  [[nodiscard]] const Shares& shares() const { return shares_; }
  [[nodiscard]] std::int32_t open(RootId root) const { return roots_[root].open; }
  [[nodiscard]] std::int32_t roots() const { return live_roots_; }
  [[nodiscard]] Node node(VisitId visit) const { return visits_[visit].node; }
  [[nodiscard]] std::int32_t stage(VisitId visit) const { return visits_[visit].stage; }
  // Returns the expected accuracy of its answer.
  [[nodiscard]] double accuracy(VisitId visit) const {
    return std::min(tree_.accuracy(visits_[visit].node) * scale_of(visits_[visit]), 1.0);
  }
  [[nodiscard]] double worth(VisitId visit) const { return visits_[visit].worth; }  // part of its root's
  // Returns the variant that it got, in its stage.
  [[nodiscard]] std::int32_t variant_in_stage(VisitId visit) const {
    return static_cast<std::int32_t>(visits_[visit].node - visits_[visit].block);
  }

 private:
  struct Root {
    std::uint64_t tag = 0;
    TimeNs due = kNever;
    TimeNs deadline = kNever;
    double utility = 1;
    double min_accuracy = 0;
    std::uint64_t may_take = 0;
    double served = 0;    // worth that has been answered
    double accuracy = 0;  // the same times its accuracy
    std::int32_t open = 0;
    std::int32_t answered = 0;
    std::int32_t dropped = 0;
    VisitId visits = kNone;  // the last one of its list
    Group groups = kNone;    // the same
    bool live = false;
  };
  enum class State : std::uint8_t {
    kGone,
    kToEnter,  // has a step to come
    kToJoin,   // the same
    kJoining,  // its row is being made
    kEntered,  // is at the scheduler
    kDead,     // has a step to come, that is to be passed over
  };
  struct Visit {
    RootId root = kNone;
    VisitId prev = kNone;  // of the root's
    VisitId next = kNone;  // the same; the free list when it is gone
    Block block = 0;
    Node node = 0;
    double worth = 1;  // part of the root's utility, 0 to 1
    TimeNs entered = 0;
    TimeNs overrun = 0;        // of the stage before, over its budget; at most 0: it was quick enough
    std::uint64_t parent = 0;  // tag
    std::uint64_t tried = 0;   // variants of its stage that refused it
    double scale = 1;          // accuracy of the row it comes of, over that of the way which its node says
    Group group = kNone;       // the innermost around it
    Group made_of = kNone;     // where its stage joins rows
    std::int32_t length = 1;
    std::int32_t index = 0;
    std::int16_t stage = 0;
    std::int16_t edge = -1;
    State state = State::kGone;
    bool chosen = false;                     // it has a variant, that refused it or let it expire
    DropReason why = DropReason::kDeadline;  // then
  };
  // What the router and the drop rule say.
  struct Choice {
    Node node = kNone;  // kNone: it is dropped
    Node from = kNone;  // what the router said; kNone: this one
  };
  struct Limits {
    TimeNs due;
    TimeNs deadline;
  };

  VisitId take(const Visit& visit);
  void tell(const Step& step);
  void leave(VisitId visit);
  void give_back(VisitId visit);
  void drop(VisitId visit, DropReason reason, TimeNs now);
  void close(const Visit& visit, TimeNs overrun, TimeNs now);
  void end(RootId root, bool failed);
  bool enter(VisitId visit, TimeNs now, Step& step);
  [[nodiscard]] Limits limits_of(const Visit& visit, const Root& root) const;
  Choice choose(const Visit& visit, const Root& root, const Limits& limits, TimeNs now, DropReason* reason);
  Choice in_time(const Visit& visit, const Root& root, Node wanted, const Limits& limits, TimeNs now,
                 DropReason* reason);
  Node backup(const Visit& visit, const Root& root, Node wanted);
  [[nodiscard]] bool good(const Visit& visit, const Root& root, Node node, std::int32_t variant) const;
  // Of all variants, a node of its block.
  [[nodiscard]] std::int32_t variant_of(const Visit& visit, Node node) const {
    return tree_.stage(visit.stage).first_variant + static_cast<std::int32_t>(node - visit.block);
  }
  [[nodiscard]] bool may(const Visit& visit, const Root& root, Node node) const;
  [[nodiscard]] bool there(const Visit& visit, Node node) const;
  [[nodiscard]] double worth(const Visit& visit, Node node, double k) const;
  [[nodiscard]] double beyond_mean(std::int32_t variant, std::int32_t length) const;
  [[nodiscard]] bool any_there(const Visit& visit) const;
  [[nodiscard]] bool falls_back(const Visit& visit, const Root& root) const;
  [[nodiscard]] TimeNs expected(const Visit& visit, Node node, const Limits& limits, TimeNs now) const;
  [[nodiscard]] TimeNs time(std::int32_t variant) const;
  void route();
  void set_prices(TimeNs now);

  // Where the head of an edge falls back, the origin of its tail does not matter.
  [[nodiscard]] double scale_of(const Visit& visit) const {
    return visit.edge >= 0 && spec_.edges[at(visit.edge)].falls_back ? 1 : visit.scale;
  }

  static constexpr double kRounding = 1e-9;   // of products of accuracies
  static constexpr double kTargetWait = .25;  // of a stage's slack, where prices are the plan's
  static constexpr double kSteep = 1.5;
  // The cost of a root as a part of its worth: at the lowest price by the most accurate variants, and at the highest by
  // those that take least.
  static constexpr double kLeastCost = 0.005;
  static constexpr double kMostCost = 4;

  const Spec spec_;
  const Tree tree_;
  dispatch::Scheduler& scheduler_;
  Plan plan_;
  Values values_;
  Values planned_;  // by the plan's price
  Shares shares_;
  Joins joins_;
  std::vector<TimeNs> after_;          // [stages]: least time from its answer to the last of its exits
  std::vector<TimeNs> must_;           // [stages]: the same of what cannot fall back on that answer
  std::vector<double> price_;          // [variants]
  std::vector<double> capacity_;       // [variants]
  std::vector<std::int32_t> lengths_;  // [stages]: tokens of the last visit
  double base_price_ = 0;              // the plan's
  double lowest_price_ = 0;
  double highest_price_ = 0;
  TimeNs slack_ = kNever;  // what the last root could wait, in all
  std::int32_t deepest_ = 1;
  bool by_length_ = false;  // some variant's rows of other lengths may take other times
  bool chooses_ = false;    // between variants, or between ends: else there are neither prices nor tables to look at
  std::vector<Root> roots_;
  std::vector<RootId> free_roots_;
  std::vector<Visit> visits_;
  VisitId free_visit_ = kNone;
  // A step to come: a visit that enters, whose step is made when it is taken, or one of `told_`.
  struct Pending {
    VisitId visit;
    std::uint32_t told;  // kNone: the visit enters
  };
  std::vector<Pending> pending_;  // from `head_` on
  std::vector<Step> told_;        // of the pending ones, and of those taken since there were none
  std::size_t head_ = 0;
  TimeNs next_look_ = 0;
  TimeNs next_table_ = 0;
  std::int32_t live_roots_ = 0;
};

// Chooses the edges of a row that a stage has answered: those whose guards hold and, where a guard follows the load,
// that pay (Pipeline::pays). Fills `taken` with numbers of `guards`, exits excluded; empty: the row ends there.
// `first`: at most one. `label`: of the answer; -1: the answer cannot be judged. `scores`: [guards]. `visit`: the
// core's, of a row that `variant` of its stage has answered.
void take_edges(std::span<const Guard> guards, bool first, std::size_t variant, std::int32_t label,
                std::span<const double> scores, const RowFacts& row, const Pipeline& core, VisitId visit,
                std::vector<std::int32_t>& taken);

}  // namespace arlo::flow::pipeline
