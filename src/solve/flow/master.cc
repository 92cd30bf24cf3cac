#include "solve/flow/master.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace arlo::solve::flow {
namespace {

constexpr double kTiny = 1e-11;  // a pivot smaller than this is none
constexpr double kGain = 1e-10;  // a reduced cost below it, times the scale of the duals, gains nothing
constexpr int kMostPivots = 4000;

}  // namespace

Master::Master(const std::vector<Stage>& stages, const Limits& limits)
    : stages_(stages), limits_(limits), pricing_(stages, limits.served_only) {
  const int options = pricing_.options();
  low_row_.resize(options);
  high_row_.resize(options);
  price_.resize(options);
  allowed_.resize(options);
}

void Master::column(const Variable& variable, std::vector<double>* out) const {
  out->assign(rows_.size() + 2, 0.0);
  std::vector<double>& a = *out;
  if (variable.kind == kUnservedKind) {
    a[0] = 1;
  } else if (variable.kind == kSlackKind) {
    a[variable.row] = 1;
  } else if (variable.kind == kSpareKind) {
    a[variable.row] = -1;
    a[1] = 1;
  } else {
    const Policy& policy = policies_[variable.kind];
    a[0] = 1;
    for (int s = 0; s < stages(); ++s) {
      const int option = pricing_.first(s) + policy.option[s];
      a[low_row_[option] < 0 ? 1 : low_row_[option]] += policy.load[s];
      if (high_row_[option] >= 0) a[high_row_[option]] += policy.load[s];
    }
  }
}

double Master::cost(const Variable& variable) const {
  if (variable.kind >= 0) return policies_[variable.kind].accuracy;
  return variable.kind == kUnservedKind ? (limits_.served_only ? -1.0 : -kUnserved) : 0.0;
}

void Master::prices(const std::vector<double>& dual) {
  for (int o = 0; o < pricing_.options(); ++o) {
    price_[o] = low_row_[o] < 0 ? dual[1] : dual[low_row_[o]];
    if (high_row_[o] >= 0) price_[o] += dual[high_row_[o]];
  }
}

// A primal simplex on an explicit inverse: there are few rows, and the start, nothing served, is always feasible.
Relaxed Master::solve(const Bounds& bounds, double cutoff) {
  Relaxed result;
  rows_.clear();
  std::vector<double> right{limits_.served, static_cast<double>(limits_.workers)};
  for (int o = 0; o < pricing_.options(); ++o) {
    low_row_[o] = high_row_[o] = -1;
    allowed_[o] = bounds.high[o] > 0;
    right[1] -= bounds.low[o];
  }
  if (right[1] < -1e-9) return result;
  right[1] = std::max(right[1], 0.0);
  std::vector<Variable> spares;
  for (int o = 0; o < pricing_.options(); ++o) {
    if (bounds.high[o] == 0) continue;
    if (bounds.low[o] > 0) {
      low_row_[o] = static_cast<int>(right.size());
      rows_.push_back({o, true});
      right.push_back(bounds.low[o]);
      if (bounds.high[o] > bounds.low[o]) spares.push_back({kSpareKind, low_row_[o]});
    }
    if (bounds.high[o] < limits_.workers && bounds.high[o] > bounds.low[o]) {
      high_row_[o] = static_cast<int>(right.size());
      rows_.push_back({o, false});
      right.push_back(bounds.high[o]);
    }
  }
  const int m = static_cast<int>(right.size());
  std::vector<Variable> basis;
  std::vector<char> basic(policies_.size(), 0);
  for (int r = 0; r < m; ++r) basis.push_back(r == 0 ? Variable{kUnservedKind, 0} : Variable{kSlackKind, r});
  std::vector<double> inverse(static_cast<std::size_t>(m) * m, 0.0), x = right, dual(m), enter, step(m);
  for (int r = 0; r < m; ++r) inverse[r * m + r] = 1;

  for (int pivots = 0;; ++pivots) {
    if (pivots == kMostPivots) return result;  // never seen; the node is given up as not better
    double value = 0;
    for (int c = 0; c < m; ++c) dual[c] = 0;
    for (int r = 0; r < m; ++r) {
      const double price = cost(basis[r]);
      value += price * x[r];
      if (price == 0) continue;
      for (int c = 0; c < m; ++c) dual[c] += price * inverse[r * m + c];
    }
    prices(dual);
    const double enough = kGain * (1 + std::abs(dual[0]));
    // Slacks and spares first, they are few; then known policies; then the tree is asked.
    Variable best{kUnservedKind, -1};
    double gain = enough;
    const bool careful = pivots > kMostPivots / 2;  // the first that gains: no cycle (Bland)
    for (int r = 1; r < m && !(careful && best.row >= 0); ++r) {
      if (-dual[r] > gain) gain = -dual[r], best = {kSlackKind, r};
    }
    for (const Variable& spare : spares) {
      const double reduced = dual[spare.row] - dual[1];
      if (reduced > gain && !(careful && best.row >= 0)) gain = reduced, best = spare;
    }
    if (cost({kUnservedKind, 0}) - dual[0] > gain) gain = cost({kUnservedKind, 0}) - dual[0], best = {kUnservedKind, 0};
    for (std::size_t p = 0; p < policies_.size(); ++p) {
      if (basic[p] || (careful && best.row >= 0)) continue;
      const Policy& policy = policies_[p];
      double reduced = policy.accuracy - dual[0];
      for (int s = 0; s < stages(); ++s) {
        const int option = pricing_.first(s) + policy.option[s];
        if (!allowed_[option]) {
          reduced = -1;
          break;
        }
        reduced -= price_[option] * policy.load[s];
      }
      if (reduced > gain) gain = reduced, best = {static_cast<int>(p), 0};
    }
    if (best.row < 0) {
      Policy found;
      double priced = 0;
      if (pricing_.best(price_, allowed_, &found, &priced) && priced - dual[0] > enough) {
        if (value + (priced - dual[0]) * limits_.served <= cutoff) return result;  // Lagrange: it cannot get there
        best = {static_cast<int>(policies_.size()), 0};
        policies_.push_back(found);
        basic.push_back(0);
      }
    }
    if (best.row < 0) {
      result.feasible = value > cutoff;
      result.value = value;
      result.price = dual[1];
      result.load.assign(pricing_.options(), 0.0);
      for (int r = 0; r < m; ++r) {
        if (basis[r].kind < 0 || x[r] <= 0) continue;
        const Policy& policy = policies_[basis[r].kind];
        result.served += x[r];
        result.mixture.emplace_back(basis[r].kind, x[r]);
        for (int s = 0; s < stages(); ++s) result.load[pricing_.first(s) + policy.option[s]] += x[r] * policy.load[s];
      }
      return result;
    }
    column(best, &enter);
    int leave = -1;
    double least = 0;
    for (int r = 0; r < m; ++r) {
      step[r] = 0;
      for (int c = 0; c < m; ++c) step[r] += inverse[r * m + c] * enter[c];
      if (step[r] <= kTiny) continue;
      const double ratio = x[r] / step[r];
      if (leave < 0 || ratio < least - 1e-13 || (ratio <= least + 1e-13 && step[r] > step[leave])) {
        leave = r;
        least = ratio;
      }
    }
    if (leave < 0) return result;  // unbounded: cannot be, every variable has a row that ends it
    const double pivot = step[leave];
    for (int c = 0; c < m; ++c) inverse[leave * m + c] /= pivot;
    x[leave] = least;
    for (int r = 0; r < m; ++r) {
      if (r == leave || step[r] == 0) continue;
      for (int c = 0; c < m; ++c) inverse[r * m + c] -= step[r] * inverse[leave * m + c];
      x[r] = std::max(x[r] - step[r] * least, 0.0);
    }
    if (basis[leave].kind >= 0) basic[basis[leave].kind] = 0;
    if (best.kind >= 0) basic[best.kind] = 1;
    basis[leave] = best;
  }
}

}  // namespace arlo::solve::flow
