// The linear program of one node: a mixture of policies, with fractions of instances between bounds.
#pragma once

#include <utility>
#include <vector>

#include "solve/flow/pricing.h"
#include "solve/flow/problem.h"

namespace arlo::solve::flow {

// Options whose instances are counted together: one, those of a variant, those of a stage. Bounds on the larger ones
// split the problem in more equal parts, so they are branched on first.
struct Group {
  int rank = 0;  // 0 an option, 1 a variant, 2 a stage
  int stage = 0;
  int variant = 0;  // of all of its options; -1: of several
  std::vector<int> options;
};

// The groups of a tree: options first, each by its own number, then variants, then stages; none twice.
std::vector<Group> Groups(const std::vector<Stage>& stages);

struct Bounds {
  std::vector<int> low, high;  // instances of every group
};

// A row of a program, by what it bounds: at least so many instances of a group, or at most.
struct Row {
  int group = 0;  // or one of those that all programs have
  bool low = false;
};

struct Relaxed {
  bool feasible = false;
  double value = 0;
  double price = 0;                             // of a worker
  double served = 0;                            // sum of the shares
  std::vector<double> load;                     // of every option
  std::vector<double> count;                    // instances of every group, fractions included
  std::vector<std::pair<int, double>> mixture;  // policy, share
};

class Master {
 public:
  Master(const std::vector<Stage>& stages, const Limits& limits);

  // The optimum between bounds; not feasible when the bounds need more than the workers, or when its value cannot
  // exceed `cutoff`.
  Relaxed solve(const Bounds& bounds, double cutoff);

  const std::vector<Group>& groups() const { return groups_; }
  const Policy& policy(int number) const { return policies_[number]; }
  const Pricing& pricing() const { return pricing_; }
  int stages() const { return static_cast<int>(stages_.size()); }

 private:
  // The kinds of variables: a policy (0 and up), or one of these.
  enum Kind {
    kShort = -1,  // the share that is not served
    kSlack = -2,  // slack of a row, the share's excepted; of a `low` row the surplus
    kSpare = -3,  // instances that a `low` row demands and no row uses
  };
  struct Variable {
    int kind;
    int row;
  };

  bool rows(const Bounds& bounds);
  bool fits(int policy) const;
  void column(const Variable& variable, std::vector<double>* out) const;
  double cost(const Variable& variable) const;
  double weighed(const Variable& variable) const;
  bool invert();
  bool start();
  double duals();
  void price_options();
  void step(const Variable& variable);
  void pivot(const Variable& entering, int leave, double x);
  Relaxed optimum() const;

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
  std::vector<std::vector<int>> spare_;  // by row: those that a spare instance of it counts in, the workers' excepted
  std::vector<double> right_;
  std::vector<char> allowed_;  // by option
  std::vector<Variable> basis_;
  std::vector<double> inverse_, x_;
  std::vector<int> tried_;            // policies that may be used
  std::vector<double> dual_, price_;  // of rows, of options
  std::vector<double> step_;          // a column in terms of the basis
  std::vector<double> column_;        // room to work in
};

}  // namespace arlo::solve::flow
