// The best policy for a price of every pool: a walk over the tree.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "solve/flow/problem.h"

namespace arlo::solve::flow {

// One option of each stage, and what it comes to.
struct Policy {
  std::array<std::int16_t, kMostStages> option{};
  std::array<double, kMostStages> load{};  // workers that it keeps busy at each stage, for all of the demand
  double value = 0;                        // accuracy less its energy
};

class Pricing {
 public:
  Pricing(const std::vector<Stage>& stages, bool served_only);

  // Number of a stage's first option among those of all stages.
  int first(int stage) const { return first_[stage]; }
  int options() const { return options_; }

  // The policy of greatest value - sum of price x load, among options that are allowed; false when no path is short
  // enough. Of equal ones the first in the order of options.
  bool best(const std::vector<double>& price, const std::vector<char>& allowed, Policy* found, double* value);

  // Load and value of the options that are set.
  void fill(Policy* policy) const;

 private:
  struct Best {
    double value = 0;
    std::array<std::int16_t, kMostStages> option{};
  };

  void rank(int stage);
  bool leaf(int stage, std::int64_t prefix, double rows, double weight, double spent, Best* best) const;
  bool walk(int stage, std::int64_t prefix, double rows, double weight, double spent, Best* best) const;

  const std::vector<Stage>& stages_;
  bool served_only_;
  int options_ = 0;
  std::vector<int> first_;
  std::vector<std::vector<int>> children_;
  struct Offer {
    double cost;  // of a row per second, its energy included
    double latency;
    std::int16_t option, variant;
  };
  // By stage: options that are allowed, at the prices asked for; and what a row costs at least from there on.
  std::vector<std::vector<Offer>> offers_;
  // Of stages that end the tree, for the time that is left: the cheapest offer of each variant.
  struct Cheapest {
    std::vector<std::int16_t> order;  // options by latency; always the same
    std::vector<double> latency;      // ascending
    std::vector<Offer> offers;        // [latency][variant]; one of latency infinity: there is none
  };
  std::vector<Cheapest> cheapest_;
  std::vector<double> least_cost_;
  // By stage and the variants up to and with it: the greatest accuracy from there on, of a weight of 1.
  std::vector<std::vector<double>> most_;
};

}  // namespace arlo::solve::flow
