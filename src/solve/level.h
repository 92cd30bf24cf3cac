// One runtime of the chain of Eq. 4-5 as the solver sees it, and the numbers of instances it may choose from.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "solve/curve.h"
#include "solve/exact.h"

namespace arlo::solve {

// Numbers of instances lo..hi that serve everything that arrives; their cost is a constant + bend / N.
struct Segment {
  int lo, hi;
  double bend;

  // The least of bend / N + price * N on the segment is at one of these two (rounding aside).
  std::pair<int, int> best(double price) const {
    if (bend < 0) return {lo, hi};  // concave, or rising
    if (price < 0 || (price == 0 && bend > 0)) return {hi, hi};
    if (price == 0) return {lo, lo};
    const double x = std::sqrt(bend / price);
    if (x <= lo) return {lo, lo};
    if (x >= hi) return {hi, hi};
    const int floor = static_cast<int>(x);
    return {floor, std::min(floor + 1, hi)};
  }
};

struct Level {
  Curve curve;
  int capacity;         // M
  int lower;            // least N
  int upper;            // lower + the workers that no lower bound needs
  int later = 0;        // sum of the lower bounds of the longer runtimes
  double demand;        // Q
  double marginal = 0;  // one more request left over to this level adds at least this to the rest of Eq. 1
  bool last;

  // Served when n instances cannot serve `arriving` (Eq. 5): all that they can.
  double full(int n) const { return static_cast<double>(static_cast<std::int64_t>(n) * capacity); }
  double full_cost(int n) const { return n > 0 ? curve.cost(full(n), n) : 0; }

  // The least N that leaves nothing over; above `upper` (or without limit) when there is none.
  int enough(double arriving) const {
    if (arriving <= 0) return 0;
    if (last) return std::max(lower, 1);
    if (capacity == 0 || arriving > full(upper)) return std::numeric_limits<int>::max();
    int n = static_cast<int>(std::ceil(arriving / capacity));
    while (full(n) < arriving) ++n;
    while (n > 0 && full(n - 1) >= arriving) --n;
    return n;
  }

  // The segments of `arriving` for N in max(lower, first)..limit, `first` being enough(arriving).
  template <class Visit>
  void segments(double arriving, int first, int limit, const Visit& visit) const {
    const int lo = std::max(lower, first);
    if (lo > limit) return;
    if (arriving <= 0) {
      visit(Segment{lo, limit, 0});
      return;
    }
    int hi = limit;  // loads ascend, so instances descend
    for (const Curve::Piece& piece : curve.pieces()) {
      const double fewest = arriving / piece.to;  // 0 for the last piece
      const int begin = fewest >= hi ? hi + 1 : std::max(lo, static_cast<int>(fewest) + 1);
      if (begin <= hi) visit(Segment{begin, hi, piece.slope * arriving * arriving});
      hi = std::min(hi, begin - 1);
      if (hi < lo) return;
    }
  }
};

// Levels of a feasible problem; empty when the lower bounds add up to more than the workers.
std::vector<Level> make_levels(int workers, const std::vector<Runtime>& runtimes);

// Eq. 1 of an allocation, with the steps of `flow` in arlo/planning/allocation/problem.py in the same order.
double value(const std::vector<Level>& levels, const std::vector<int>& instances);

}  // namespace arlo::solve
