// The linear program of one node: a mixture of policies, with fractions of instances between bounds.
#pragma once

#include <utility>
#include <vector>

#include "solve/flow/pricing.h"
#include "solve/flow/problem.h"

namespace arlo::solve::flow {

constexpr double kUnserved = 1000;  // what a share of the demand is worth beside its accuracy, which is at most 1

// Options whose instances are counted together: one, those of a variant, those of a stage. Bounds on the larger ones
// split the problem in more equal parts, so they are branched on first.
struct Group {
  int rank = 0;  // 0 an option, 1 a variant, 2 a stage
  std::vector<int> options;
};

// The groups of a tree: options first, each by its own number, then variants, then stages; none twice.
std::vector<Group> Groups(const std::vector<Stage>& stages);

struct Bounds {
  std::vector<int> low, high;  // instances of every group
};

struct Relaxed {
  bool feasible = false;
  double value = 0;
  double price = 0;                             // of a worker
  double served = 0;                            // sum of the shares
  std::vector<double> load;                     // of every option
  std::vector<double> count;                    // instances of every group, fractions of them too
  std::vector<std::pair<int, double>> mixture;  // policy, share
};

class Master {
 public:
  Master(const std::vector<Stage>& stages, const Limits& limits);

  // The optimum between bounds; not feasible when the bounds need more than the workers, or when its value cannot
  // exceed `cutoff`. `known`: policies to try first, as those of the node before.
  Relaxed solve(const Bounds& bounds, const std::vector<std::pair<int, double>>& known, double cutoff);

  const std::vector<Group>& groups() const { return groups_; }
  const Policy& policy(int number) const { return policies_[number]; }
  const Pricing& pricing() const { return pricing_; }
  int stages() const { return static_cast<int>(stages_.size()); }

 private:
  struct Row {
    int group;
    bool low;  // at least; else at most
  };
  // What a variable is: a policy (0 and up), or one of these.
  enum Kind {
    kShort = -1,  // the share that is not served
    kSlack = -2,  // of a row, the share's excepted: what is left of it, or of a `low` row what is beyond it
    kSpare = -3,  // instances that a `low` row demands and no row uses
  };
  struct Variable {
    int kind;
    int row;
  };

  bool rows(const Bounds& bounds);
  void column(const Variable& variable, std::vector<double>* out) const;
  double cost(const Variable& variable) const;
  bool start();

  const std::vector<Stage>& stages_;
  Limits limits_;
  Pricing pricing_;
  std::vector<Group> groups_;
  std::vector<std::vector<int>> groups_of_;  // by option
  std::vector<std::vector<int>> inside_;     // by group: groups whose options are all in it, itself too
  std::vector<Policy> policies_;

  // Of the program at hand.
  int size_ = 0;
  std::vector<Row> rows_;                // the first two are of all programs: shares, workers
  std::vector<int> low_row_, high_row_;  // by group; -1: none
  std::vector<double> right_;
  std::vector<char> allowed_;  // by option
  std::vector<Variable> basis_;
  std::vector<double> inverse_, x_;
};

}  // namespace arlo::solve::flow
