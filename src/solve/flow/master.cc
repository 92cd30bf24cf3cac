#include "solve/flow/master.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace arlo::solve::flow {
namespace {

constexpr double kTiny = 1e-11;  // a pivot smaller than this is none
constexpr double kGain = 1e-10;  // a reduced cost below it, times the scale of the duals, gains nothing
constexpr int kMostPivots = 4000;

bool in(const std::vector<int>& options, int option) {
  return std::binary_search(options.begin(), options.end(), option);
}

}  // namespace

std::vector<Group> Groups(const std::vector<Stage>& stages) {
  std::vector<Group> found, variants, whole;
  int number = 0;
  for (const Stage& stage : stages) {
    Group all{2, {}};
    for (int variant = 0; variant < stage.variants; ++variant) {
      Group group{1, {}};
      for (std::size_t o = 0; o < stage.options.size(); ++o) {
        if (stage.options[o].variant == variant) group.options.push_back(number + static_cast<int>(o));
      }
      if (group.options.size() > 1 && group.options.size() < stage.options.size()) variants.push_back(group);
    }
    for (std::size_t o = 0; o < stage.options.size(); ++o, ++number) {
      found.push_back({0, {number}});
      all.options.push_back(number);
    }
    if (all.options.size() > 1) whole.push_back(all);
  }
  found.insert(found.end(), variants.begin(), variants.end());
  found.insert(found.end(), whole.begin(), whole.end());
  return found;
}

Master::Master(const std::vector<Stage>& stages, const Limits& limits)
    : stages_(stages), limits_(limits), pricing_(stages, limits.served_only), groups_(Groups(stages)) {
  groups_of_.resize(pricing_.options());
  inside_.resize(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const int option : groups_[g].options) groups_of_[option].push_back(static_cast<int>(g));
    for (std::size_t h = 0; h <= g; ++h) {  // smaller ones come first
      if (in(groups_[g].options, groups_[h].options.front())) inside_[g].push_back(static_cast<int>(h));
    }
  }
  allowed_.resize(pricing_.options());
}

// The rows of these bounds; false when they contradict each other.
bool Master::rows(const Bounds& bounds) {
  rows_.assign(2, {-1, false});
  right_ = {limits_.served, static_cast<double>(limits_.workers)};
  low_row_.assign(groups_.size(), -1);
  high_row_.assign(groups_.size(), -1);
  std::fill(allowed_.begin(), allowed_.end(), 1);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (bounds.low[g] > bounds.high[g]) return false;
    if (bounds.high[g] == 0) {
      for (const int option : groups_[g].options) allowed_[option] = 0;
    } else if (bounds.high[g] < limits_.workers) {
      high_row_[g] = static_cast<int>(rows_.size());
      rows_.push_back({static_cast<int>(g), false});
      right_.push_back(bounds.high[g]);
    }
    if (bounds.low[g] > 0) {
      low_row_[g] = static_cast<int>(rows_.size());
      rows_.push_back({static_cast<int>(g), true});
      right_.push_back(bounds.low[g]);
    }
  }
  size_ = static_cast<int>(rows_.size());
  return true;
}

void Master::column(const Variable& variable, std::vector<double>* out) const {
  out->assign(size_, 0.0);
  std::vector<double>& a = *out;
  if (variable.kind == kShort) {
    a[0] = 1;
  } else if (variable.kind == kSlack) {
    a[variable.row] = rows_[variable.row].low ? -1 : 1;
  } else if (variable.kind == kSpare) {
    a[1] = 1;
    const int option = groups_[rows_[variable.row].group].options.front();
    const std::size_t least = groups_[rows_[variable.row].group].options.size();
    for (const int g : groups_of_[option]) {
      if (groups_[g].options.size() < least) continue;
      if (low_row_[g] >= 0) a[low_row_[g]] = 1;
      if (high_row_[g] >= 0) a[high_row_[g]] = 1;
    }
  } else {
    const Policy& policy = policies_[variable.kind];
    a[0] = 1;
    for (int s = 0; s < stages(); ++s) {
      a[1] += policy.load[s];
      for (const int g : groups_of_[pricing_.first(s) + policy.option[s]]) {
        if (low_row_[g] >= 0) a[low_row_[g]] += policy.load[s];
        if (high_row_[g] >= 0) a[high_row_[g]] += policy.load[s];
      }
    }
  }
}

double Master::cost(const Variable& variable) const {
  if (variable.kind >= 0) return policies_[variable.kind].accuracy;
  return variable.kind == kShort ? (limits_.served_only ? -1.0 : -kUnserved) : 0.0;
}

// Nothing served, and as many spare instances as the rows demand, from the small groups to the large: the first basis.
// False when the bounds need more workers than there are.
bool Master::start() {
  basis_.assign(size_, {kSlack, 0});
  std::vector<double> spare(groups_.size(), 0.0);
  double total = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    double held = 0;
    for (const int h : inside_[g]) held += spare[h];
    if (low_row_[g] >= 0 && right_[low_row_[g]] > held) {
      spare[g] = right_[low_row_[g]] - held;
      held = right_[low_row_[g]];
    }
    if (high_row_[g] >= 0 && held > right_[high_row_[g]]) return false;
    total += spare[g];
  }
  if (total > limits_.workers) return false;
  for (int r = 0; r < size_; ++r) {
    basis_[r] = {kSlack, r};
    if (r == 0) basis_[r] = {kShort, 0};
    if (rows_[r].low && spare[rows_[r].group] > 0) basis_[r] = {kSpare, r};
  }
  // Gauss-Jordan on the columns of the basis: few rows, nearly all of them unit vectors.
  const int m = size_;
  std::vector<double> matrix(static_cast<std::size_t>(m) * m), each;
  for (int c = 0; c < m; ++c) {
    column(basis_[c], &each);
    for (int r = 0; r < m; ++r) matrix[r * m + c] = each[r];
  }
  inverse_.assign(static_cast<std::size_t>(m) * m, 0.0);
  for (int r = 0; r < m; ++r) inverse_[r * m + r] = 1;
  for (int c = 0; c < m; ++c) {
    int best = c;
    for (int r = c; r < m; ++r) {
      if (std::abs(matrix[r * m + c]) > std::abs(matrix[best * m + c])) best = r;
    }
    if (std::abs(matrix[best * m + c]) < kTiny) return false;  // cannot be: every basis column has a row of its own
    if (best != c) {
      for (int k = 0; k < m; ++k) {
        std::swap(matrix[best * m + k], matrix[c * m + k]);
        std::swap(inverse_[best * m + k], inverse_[c * m + k]);
      }
    }
    const double pivot = matrix[c * m + c];
    for (int k = 0; k < m; ++k) matrix[c * m + k] /= pivot, inverse_[c * m + k] /= pivot;
    for (int r = 0; r < m; ++r) {
      const double factor = matrix[r * m + c];
      if (r == c || factor == 0) continue;
      for (int k = 0; k < m; ++k) {
        matrix[r * m + k] -= factor * matrix[c * m + k];
        inverse_[r * m + k] -= factor * inverse_[c * m + k];
      }
    }
  }
  x_.assign(m, 0.0);
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < m; ++c) x_[r] += inverse_[r * m + c] * right_[c];
    x_[r] = std::max(x_[r], 0.0);
  }
  return true;
}

// A primal simplex on an explicit inverse.
Relaxed Master::solve(const Bounds& bounds, const std::vector<std::pair<int, double>>& known, double cutoff) {
  Relaxed result;
  if (!rows(bounds) || !start()) return result;
  const int m = size_;
  std::vector<int> tried;
  for (const auto& [number, share] : known) {
    bool fits = true;
    for (int s = 0; s < stages(); ++s) fits = fits && allowed_[pricing_.first(s) + policies_[number].option[s]];
    if (fits) tried.push_back(number);
  }
  std::vector<double> dual(m), enter, step(m), price(pricing_.options());
  for (int pivots = 0;; ++pivots) {
    if (pivots == kMostPivots) return result;  // never seen; the node is given up as not better
    double value = 0;
    std::fill(dual.begin(), dual.end(), 0.0);
    for (int r = 0; r < m; ++r) {
      const double worth = cost(basis_[r]);
      value += worth * x_[r];
      if (worth == 0) continue;
      for (int c = 0; c < m; ++c) dual[c] += worth * inverse_[r * m + c];
    }
    for (int o = 0; o < pricing_.options(); ++o) {
      price[o] = dual[1];
      for (const int g : groups_of_[o]) {
        if (low_row_[g] >= 0) price[o] += dual[low_row_[g]];
        if (high_row_[g] >= 0) price[o] += dual[high_row_[g]];
      }
    }
    const double enough = kGain * (1 + std::abs(dual[0]));
    const bool careful = pivots > kMostPivots / 2;  // the first that gains: no cycle (Bland)
    Variable best{kShort, -1};
    double gain = enough;
    const auto offer = [&](const Variable& variable, double reduced) {
      if (reduced > gain && (!careful || best.row < 0)) gain = reduced, best = variable;
    };
    for (int r = 1; r < m; ++r) {
      offer({kSlack, r}, rows_[r].low ? dual[r] : -dual[r]);
      if (!rows_[r].low) continue;
      column({kSpare, r}, &enter);
      double reduced = 0;
      for (int c = 0; c < m; ++c) reduced -= dual[c] * enter[c];
      offer({kSpare, r}, reduced);
    }
    offer({kShort, 0}, cost({kShort, 0}) - dual[0]);
    for (const int number : tried) {
      const Policy& policy = policies_[number];
      double reduced = policy.accuracy - dual[0];
      for (int s = 0; s < stages(); ++s) reduced -= price[pricing_.first(s) + policy.option[s]] * policy.load[s];
      offer({number, 0}, reduced);
    }
    if (best.row < 0) {
      Policy found;
      double priced = 0;
      if (pricing_.best(price, allowed_, &found, &priced) && priced - dual[0] > enough) {
        if (value + (priced - dual[0]) * limits_.served <= cutoff) return result;  // Lagrange: it cannot get there
        best = {static_cast<int>(policies_.size()), 0};
        tried.push_back(best.kind);
        policies_.push_back(found);
      }
    }
    if (best.row < 0) {
      result.feasible = value > cutoff;
      result.value = value;
      result.price = dual[1];
      result.load.assign(pricing_.options(), 0.0);
      result.count.assign(groups_.size(), 0.0);
      for (int r = 0; r < m; ++r) {
        if (x_[r] <= 0 || basis_[r].kind == kShort || basis_[r].kind == kSlack) continue;
        if (basis_[r].kind == kSpare) {
          for (std::size_t g = 0; g < groups_.size(); ++g) {
            if (std::find(inside_[g].begin(), inside_[g].end(), rows_[basis_[r].row].group) != inside_[g].end()) {
              result.count[g] += x_[r];
            }
          }
          continue;
        }
        const Policy& policy = policies_[basis_[r].kind];
        result.served += x_[r];
        result.mixture.emplace_back(basis_[r].kind, x_[r]);
        for (int s = 0; s < stages(); ++s) result.load[pricing_.first(s) + policy.option[s]] += x_[r] * policy.load[s];
      }
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        for (const int option : groups_[g].options) result.count[g] += result.load[option];
      }
      return result;
    }
    column(best, &enter);
    int leave = -1;
    double least = 0;
    for (int r = 0; r < m; ++r) {
      step[r] = 0;
      for (int c = 0; c < m; ++c) step[r] += inverse_[r * m + c] * enter[c];
      if (step[r] <= kTiny) continue;
      const double ratio = x_[r] / step[r];
      if (leave < 0 || ratio < least - 1e-13 || (ratio <= least + 1e-13 && step[r] > step[leave])) {
        leave = r;
        least = ratio;
      }
    }
    if (leave < 0) return result;  // unbounded: cannot be, every variable has a row that ends it
    const double pivot = step[leave];
    for (int c = 0; c < m; ++c) inverse_[leave * m + c] /= pivot;
    x_[leave] = least;
    for (int r = 0; r < m; ++r) {
      if (r == leave || step[r] == 0) continue;
      for (int c = 0; c < m; ++c) inverse_[r * m + c] -= step[r] * inverse_[leave * m + c];
      x_[r] = std::max(x_[r] - step[r] * least, 0.0);
    }
    basis_[leave] = best;
  }
}

}  // namespace arlo::solve::flow
