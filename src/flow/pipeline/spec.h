// A pipeline as data: a rooted tree of stages, each with variants that can do it, and a plan for them.
//
// Paper: Loki (HPDC'24), sections 2.1 and 4.1; what it leaves open is decided in docs/flows.md. Stages are in an
// order in which parents come before children; stage 0 is the entry. Every other stage has one edge that leads to it,
// or is one that joins what comes by several; the first of these is the tree's.
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch/scheduler.h"

namespace arlo::flow::pipeline {

using arlo::kNever;
using arlo::TimeNs;

inline constexpr std::int32_t kMaxStages = 16;
inline constexpr std::size_t kMaxNodes = 1 << 16;

// A number of a stage, variant or edge, as an index.
inline std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// A network that can do a stage.
struct VariantSpec {
  dispatch::VariantId id = 0;  // the scheduler's: its runtimes, and the workers that hold them
  double accuracy = 1;         // of the stage's answers, 0 to 1
  TimeNs least = 1;            // time of a row alone
  double work = 0;             // worker-seconds of a row in full batches, > 0
  double energy = 0;           // utility that a worker-second costs beyond its price, for what it draws, >= 0
};

struct StageSpec {
  std::vector<VariantSpec> variants;
  // If its variants are one network at several token counts, a body of the scheduler's (set_body), this is the variant
  // whose line all visits share; the executing variant is reported when they start (Pipeline::took). -1: no body.
  std::int32_t line = -1;
};

struct EdgeSpec {
  std::int32_t from = 0;
  std::int32_t to = 0;              // > from
  std::vector<double> factor = {};  // [variants of `from`]: mean children of a row, >= 0; Loki's multiplicative factor
  TimeNs hop = 0;                   // between the two
  // The tail has already answered the head's question; its answer counts if the head gives none. Such an edge makes one
  // child of a row.
  bool falls_back = false;
  // A row of the head joins all descendants of one row of this stage, the fork, over all edges to the head, which name
  // the same fork. `factor` then applies to the tree's edge: rows of the head for a row of the tail. -1: no join.
  std::int32_t join = -1;
};

// Which variant a visit gets when it enters a stage.
enum class Router : std::uint8_t {
  kPrice,  // where utility x expected accuracy less price x worker-seconds is most, of those that can be on time
  kPlan,   // by the plan's shares of each prefix, filled up to the present capacity (ours)
  kMaf,    // by the tables of MostAccurateFirst (Loki Algorithm 1)
};

// The treatment of rows that run behind (Loki section 5.2).
enum class Drop : std::uint8_t {
  kNone,     // they go on, without limits
  kLast,     // dropped at a last stage where the time left is less than what it takes
  kPerTask,  // dropped when a stage took longer than its budget
  kReroute,  // then sent to a quicker variant with leftover capacity, dropped where there is none
  kSlack,    // sent to a variant that can still be on time, dropped when none can (ours)
};

enum class OnDrop : std::uint8_t {
  kFail,     // the first drop ends the root
  kPartial,  // it ends with the answers it has
};

struct Spec {
  std::vector<StageSpec> stages;
  std::vector<EdgeSpec> edges;        // the edges to one stage's children in the order in which they fire
  std::vector<double> accuracy = {};  // [nodes of Tree]: of the path up to there; empty: products
  Router router = Router::kPrice;
  Drop drop = Drop::kSlack;
  OnDrop on_drop = OnDrop::kFail;
  std::int32_t max_open = 1 << 16;  // visits of one root at a time; more are dropped (kFanout)
  bool follows_load = false;        // whether rows go on is asked (Pipeline::pays), also where no stage has a choice
};

// The planner's decision; it may change at any time. Vectors over variants count them stage by stage.
struct Plan {
  std::uint64_t version = 0;
  double demand = 0;                        // roots a second that it is made for
  double price = 0;                         // utility that one more worker-second would buy: the dual of capacity
  std::vector<double> share = {};           // [nodes]: f(prefix), of the roots; empty: not given
  std::vector<std::uint8_t> feasible = {};  // [nodes]: I(prefix), its path is quick enough; empty: all are
  std::vector<double> rate = {};            // [variants]: rows a second that one instance may get; empty: 1 / work
  std::vector<TimeNs> budget = {};          // [variants]: of a visit, its queue included; empty: none is ever behind
  std::vector<TimeNs> time = {};            // [variants]: profiled, at the batch that is set; empty: `least`
};

// Throw std::invalid_argument, naming the field and its range.
void validate(const Spec& spec);
void validate(const Plan& plan, const Spec& spec);

}  // namespace arlo::flow::pipeline
