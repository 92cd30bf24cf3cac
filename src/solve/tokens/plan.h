// Chooses the token count of each batch of a queue on one worker that executes them one after another: OTAS (arXiv
// 2401.05031), Eq. 1, Algorithms 2 and 3, and an exact solver of the same problem.
//
// Batches come sorted by deadline. An option of a batch is a way to execute it; clock + time < deadline must hold
// (strictly, Eq. 1a). Of the printed algorithms option i is entry i of the list of token counts, ascending. The exact
// one takes any options: a price of time is paid beforehand (utility - price * time), and leaving out the most urgent
// rows is an option with a later deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/time.h"

namespace arlo::solve::tokens {

struct Option {
  TimeNs time = 0;     // >= 0, below 2^60
  double utility = 0;  // finite
  TimeNs deadline = kNever;
};

struct Batch {
  std::vector<Option> options;
  double mean_utility = 0;  // of its rows; Algorithm 3 asks for it
};

inline constexpr int kEvict = -1;

struct Plan {
  std::vector<int> choice;  // [batches]: an option, or kEvict
  double utility = 0;       // of the chosen options
  double bound = 0;         // PlanExact: no plan has more
  TimeNs end = 0;           // when the last batch ends
};

// Algorithm 2. All batches have equally many options. A state keeps the predecessor of the most utility at any
// clock, so that the plan need not be the best. The states' predecessors start at 0, which evicts; as printed, at 1,
// a batch would run past its deadline where all before it are infeasible.
Plan PlanPrinted(TimeNs now, std::span<const Batch> batches);

// Algorithm 3: option `usual` for each batch; the first where that would be late, the last where its rows are worth
// more than `kappa` on average. Evicts none, and the last one is taken without a look at the deadline, as printed.
Plan PlanManual(TimeNs now, std::span<const Batch> batches, int usual, double kappa);

// The plan of the most utility for batches in this order: all labels (clock, utility) that no other one beats, cut down
// to `labels` by joining those of nearly equal utility; `bound` says what that may have cost. Memory is kept between
// calls.
class ExactPlanner {
 public:
  explicit ExactPlanner(std::size_t labels = 256) : most_(labels) {}
  void plan(TimeNs now, std::span<const Batch> batches, Plan& plan);
  [[nodiscard]] std::uint64_t looked_at() const { return looked_at_; }

 private:
  struct Label {
    TimeNs clock;
    double utility;
    std::int32_t parent;  // in the layer before
    std::int32_t choice;
  };
  using Layer = std::vector<Label>;  // clock and utility both ascend

  static double floor_of(TimeNs now, std::span<const Batch> batches);
  static double busy(TimeNs now, std::span<const Batch> batches, double price);
  void find_bounds(TimeNs now, std::span<const Batch> batches);
  void run(TimeNs now, std::span<const Batch> batches, double known, std::size_t most, Plan& plan);
  void extend(const Layer& from, const Option& option, int choice, double least, std::size_t next, Layer& into);
  static void join(const Layer& a, const Layer& b, Layer& into);
  static double trim(Layer& layer, std::size_t most);

  std::size_t most_;
  std::uint64_t looked_at_ = 0;
  std::vector<Layer> layers_;
  std::vector<Layer> lists_;
  std::vector<double> rest_;  // [batches + 1]: most that these and later ones may bring in any time
  std::vector<double> gain_;  // the same beyond the price of their time
  double price_ = 0;          // of a nanosecond
  TimeNs end_ = 0;            // the last deadline
  Layer joined_;
};

}  // namespace arlo::solve::tokens
