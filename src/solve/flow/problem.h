// Finds the instances of each variant that a flow needs: problem U of arlo/planning/flows/problem.py, solved exactly.
//
// A *policy* picks one option, a variant with a batch cap, at every stage of the tree. Any distribution of the rows is
// a mixture of policies, because the choices on one branch do not bind those on another. A mixture loads the pools; a
// pool is an option with its instances, whose number is whole. So:
//
//   max  sum_c x_c A_c - unserved (served - sum_c x_c)       A_c: value of policy c: accuracy, the mean over its exits,
//                                                            less its energy
//   s.t. sum_c x_c <= served,  load_o(x) <= n_o,  sum_o n_o <= workers,  n_o whole
//
// The linear program behind it has a row for the workers, one for the shares, and one for each bound on the instances
// of an option, a variant or a stage that was branched on; its columns are found as they are needed, by a walk over the
// tree that picks the best option at every stage for a price of each pool (pricing.h). Branch and bound does the rest
// (search.cc). Pure: no clock, no threads.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace arlo::solve::flow {

constexpr int kMostStages = 17;  // arlo.catalog.flow.MAX_STAGES, and a root before several trees

struct Option {
  int variant = 0;
  double work = 0;     // workers that one row per second keeps busy, what the plan leaves free included
  double latency = 0;  // seconds of a batch
  double energy = 0;   // accuracy that the energy of one row per second is worth
};

// Parents come before their children.
struct Stage {
  int parent = -1;
  int variants = 1;
  double weight = 1;                                       // of what its parent's exits leave of the accuracy's weight
  double limit = std::numeric_limits<double>::infinity();  // seconds from the root up to and with this stage
  std::vector<double> factor;    // by variant of the parent: rows here for a row there; of the root: {roots per second}
  std::vector<double> exit;      // by variant: share of the weight that ends here
  std::vector<double> accuracy;  // by the variants from the root to here, the last one running fastest
  std::vector<Option> options;
};

struct Limits {
  int workers = 0;
  double served = 1;                                        // share of the demand to plan for
  bool served_only = false;                                 // value does not count: how much can be served at all
  bool single_batch = false;                                // all instances of a variant have one batch cap
  double target = std::numeric_limits<double>::infinity();  // the first plan of this value will do, and no worse one
  double gap = 0;  // a plan that is not further than this from the best one is proven good enough
  std::uint64_t max_nodes = 100'000;
  std::vector<std::vector<int>> held;  // by stage and variant: the most instances; empty: any number
  double unserved = 1000;              // penalty for an unserved share of the demand; larger, values can be below 0
};

struct Mix {
  std::vector<int> options;  // one of each stage
  double weight = 0;         // share of the demand
};

struct Answer {
  std::vector<std::vector<int>> instances;  // by stage and option; empty: no plan reaches the target
  std::vector<Mix> mixes;
  double value = -std::numeric_limits<double>::infinity();
  double served = 0;
  double relaxed = 0;  // with fractions of instances: the bound of the first node
  double bound = 0;    // proven: nothing is better
  double price = 0;    // value that one more worker would add, with fractions of instances
  bool optimal = false;
  std::uint64_t nodes = 0;
};

Answer Solve(const std::vector<Stage>& stages, const Limits& limits);

}  // namespace arlo::solve::flow
