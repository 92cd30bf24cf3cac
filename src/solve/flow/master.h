// The linear program of one node: a mixture of policies, with fractions of instances between bounds.
#pragma once

#include <vector>

#include "solve/flow/pricing.h"
#include "solve/flow/problem.h"

namespace arlo::solve::flow {

constexpr double kUnserved = 1000;  // what a share of the demand is worth beside its accuracy, which is at most 1

struct Bounds {
  std::vector<int> low, high;  // instances of every option
};

struct Relaxed {
  bool feasible = false;
  double value = 0;
  double price = 0;                             // of a worker
  double served = 0;                            // sum of the shares
  std::vector<double> load;                     // of every option
  std::vector<std::pair<int, double>> mixture;  // policy, share
};

class Master {
 public:
  Master(const std::vector<Stage>& stages, const Limits& limits);

  // The optimum between bounds; not feasible when the bounds need more than the workers, or when its value cannot
  // exceed `cutoff`.
  Relaxed solve(const Bounds& bounds, double cutoff);

  const Policy& policy(int number) const { return policies_[number]; }
  const Pricing& pricing() const { return pricing_; }
  int stages() const { return static_cast<int>(stages_.size()); }

 private:
  struct Row {
    int option;
    bool low;  // load - spare <= low; else load <= high
  };
  // Kinds of variables: a policy (0 and up), or one of these, with a row.
  enum Kind { kUnservedKind = -1, kSlackKind = -2, kSpareKind = -3 };
  struct Variable {
    int kind;
    int row;
  };

  void column(const Variable& variable, std::vector<double>* out) const;
  double cost(const Variable& variable) const;
  void prices(const std::vector<double>& dual);

  const std::vector<Stage>& stages_;
  Limits limits_;
  Pricing pricing_;
  std::vector<Policy> policies_;

  // Of the program at hand.
  std::vector<Row> rows_;      // behind the two of all programs: shares, workers
  std::vector<int> low_row_;   // by option; -1: none
  std::vector<int> high_row_;  // likewise
  std::vector<double> price_;  // by option
  std::vector<char> allowed_;  // by option
};

}  // namespace arlo::solve::flow
