// L(B) of Eq. 1: the mean latency of B requests that one instance is given at once, from measured batches.
#pragma once

#include <limits>
#include <utility>
#include <vector>

namespace arlo::solve {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kPrices = 60;          // prices of a worker tried for a bound; it takes about ten
constexpr double kRounding = 1e-11;  // relative; more than the sums of doubles here can be off

// Piecewise linear in the load; agrees with LatencyCurve in arlo/planning/allocation/problem.py to the last bit.
class Curve {
 public:
  // L(B) = base + slope * B for from <= B <= to. Pieces ascend and cover B >= 0; the last one ends at infinity.
  struct Piece {
    double from, to, base, slope;
  };

  // Points: (rows, milliseconds of the whole batch), rows ascending from 1.
  explicit Curve(std::vector<std::pair<int, double>> points);

  double mean_ms(double load) const;
  // Returns what `instances` that share `requests` evenly add to Eq. 1. At least one instance if there are requests.
  double cost(double requests, int instances) const {
    return requests > 0 ? mean_ms(requests / instances) * requests : 0;
  }
  // Least derivative of B * L(B), the cost of one instance, for from <= B <= to.
  double least_marginal(double from, double to) const;
  // Returns whether L never falls as the load grows.
  bool rising() const;
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  double batch_ms(double rows) const;

  std::vector<std::pair<int, double>> points_;
  std::vector<Piece> pieces_;
};

}  // namespace arlo::solve
