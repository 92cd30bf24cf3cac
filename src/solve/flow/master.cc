#include "solve/flow/master.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace arlo::solve::flow {
namespace {

constexpr double kTiny = 1e-8;   // a pivot smaller than this is none: it would drown the others in what rounding left
constexpr double kGain = 1e-10;  // a reduced cost below it, times the scale of the duals, gains nothing
constexpr double kBelow = 1e-9;  // a variable below it is negative
constexpr int kMostPivots = 4000;
constexpr int kShares = -2, kWorkers = -1;  // the rows of all programs

bool in(const std::vector<int>& options, int option) {
  return std::binary_search(options.begin(), options.end(), option);
}

}  // namespace

std::vector<Group> Groups(const std::vector<Stage>& stages) {
  std::vector<Group> found, variants, whole;
  for (int s = 0, number = 0; s < static_cast<int>(stages.size()); ++s) {
    const Stage& stage = stages[s];
    std::vector<Group> of(stage.variants);
    Group all{2, s, stage.options.front().variant, {}};
    for (const Option& option : stage.options) {
      found.push_back({0, s, option.variant, {number}});
      of[option.variant].options.push_back(number);
      all.options.push_back(number++);
      if (option.variant != all.variant) all.variant = -1;
    }
    for (int variant = 0; variant < stage.variants; ++variant) {
      const std::size_t options = of[variant].options.size();
      if (options > 1 && options < stage.options.size()) variants.push_back({1, s, variant, of[variant].options});
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

// The rows of these bounds; false when they contradict each other. Options without instances need none.
bool Master::rows(const Bounds& bounds) {
  rows_ = {{kShares, false}, {kWorkers, false}};
  right_ = {limits_.served, static_cast<double>(limits_.workers)};
  low_row_.assign(groups_.size(), -1);
  high_row_.assign(groups_.size(), -1);
  std::fill(allowed_.begin(), allowed_.end(), 1);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (bounds.low[g] > bounds.high[g]) return false;
    if (bounds.high[g] == 0) {
      for (const int option : groups_[g].options) allowed_[option] = 0;
    }
    if (bounds.high[g] < limits_.workers && bounds.high[g] > 0) {
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
  spare_.resize(size_);
  for (int r = 2; r < size_; ++r) {
    spare_[r].clear();
    if (!rows_[r].low) continue;
    const auto& options = groups_[rows_[r].group].options;
    for (const int g : groups_of_[options.front()]) {
      if (groups_[g].options.size() < options.size()) continue;
      if (low_row_[g] >= 0) spare_[r].push_back(low_row_[g]);
      if (high_row_[g] >= 0) spare_[r].push_back(high_row_[g]);
    }
  }
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
    for (const int r : spare_[variable.row]) a[r] = 1;
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
  if (variable.kind >= 0) return policies_[variable.kind].value;
  return variable.kind == kShort ? (limits_.served_only ? -1.0 : -limits_.unserved) : 0.0;
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
  if (!invert()) return false;
  for (double& x : x_) x = std::max(x, 0.0);
  return true;
}

// Gauss-Jordan on the columns of the basis: few rows, nearly all of them unit vectors.
bool Master::invert() {
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
    if (std::abs(matrix[best * m + c]) < kTiny) return false;
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
  }
  return true;
}

bool Master::fits(int policy) const {
  for (int s = 0; s < stages(); ++s) {
    if (!allowed_[pricing_.first(s) + policies_[policy].option[s]]) return false;
  }
  return true;
}

void Master::price_options() {
  price_.assign(pricing_.options(), dual_[1]);
  for (int r = 2; r < size_; ++r) {
    if (dual_[r] == 0) continue;
    for (const int option : groups_[rows_[r].group].options) price_[option] += dual_[r];
  }
}

double Master::weighed(const Variable& variable) const {
  if (variable.kind == kShort) return dual_[0];
  if (variable.kind == kSlack) return rows_[variable.row].low ? -dual_[variable.row] : dual_[variable.row];
  if (variable.kind == kSpare) {
    double sum = dual_[1];
    for (const int r : spare_[variable.row]) sum += dual_[r];
    return sum;
  }
  const Policy& policy = policies_[variable.kind];
  double sum = dual_[0];
  for (int s = 0; s < stages(); ++s) sum += price_[pricing_.first(s) + policy.option[s]] * policy.load[s];
  return sum;
}

// Prices of the rows; the value of the program.
double Master::duals() {
  double value = 0;
  dual_.assign(size_, 0.0);
  for (int r = 0; r < size_; ++r) {
    const double worth = cost(basis_[r]);
    value += worth * x_[r];
    if (worth == 0) continue;
    for (int c = 0; c < size_; ++c) dual_[c] += worth * inverse_[r * size_ + c];
  }
  return value;
}

// `step_` is the entering column in terms of the basis; `x` what the entering variable becomes.
void Master::pivot(const Variable& entering, int leave, double x) {
  const int m = size_;
  for (int c = 0; c < m; ++c) inverse_[leave * m + c] /= step_[leave];
  for (int r = 0; r < m; ++r) {
    if (r == leave || step_[r] == 0) continue;
    for (int c = 0; c < m; ++c) inverse_[r * m + c] -= step_[r] * inverse_[leave * m + c];
    x_[r] -= step_[r] * x;
  }
  x_[leave] = x;
  basis_[leave] = entering;
}

// A column in terms of the basis.
void Master::step(const Variable& variable) {
  column(variable, &column_);
  step_.assign(size_, 0.0);
  for (int r = 0; r < size_; ++r) {
    for (int c = 0; c < size_; ++c) step_[r] += inverse_[r * size_ + c] * column_[c];
  }
}

// A primal simplex on an explicit inverse.
Relaxed Master::solve(const Bounds& bounds, double cutoff) {
  if (!rows(bounds)) return {};
  tried_.clear();
  for (int number = 0; number < static_cast<int>(policies_.size()); ++number) {
    if (fits(number)) tried_.push_back(number);
  }
  if (!start()) return {};
  for (int pivots = 0; pivots < kMostPivots; ++pivots) {
    const double value = duals();
    price_options();
    const double enough = kGain * (1 + std::abs(dual_[0]));
    const bool careful = pivots > kMostPivots / 2;  // the first that gains: no cycle (Bland)
    Variable best{kShort, -1};
    double gain = enough;
    const auto look = [&](const Variable& variable) {
      const double reduced = cost(variable) - weighed(variable);
      if (reduced > gain && (!careful || best.row < 0)) gain = reduced, best = variable;
    };
    for (int r = 1; r < size_; ++r) {
      look({kSlack, r});
      if (rows_[r].low) look({kSpare, r});
    }
    look({kShort, 0});
    for (const int number : tried_) look({number, 0});
    if (best.row < 0) {
      Policy found;
      double priced = 0;
      if (pricing_.best(price_, allowed_, &found, &priced) && priced - dual_[0] > enough) {
        if (value + (priced - dual_[0]) * limits_.served <= cutoff) return {};  // Lagrange: it cannot get there
        best = {static_cast<int>(policies_.size()), 0};
        tried_.push_back(best.kind);
        policies_.push_back(found);
      }
    }
    if (best.row < 0) {
      Relaxed result = optimum();
      result.feasible = value > cutoff;
      result.value = value;
      return result;
    }
    step(best);
    int leave = -1;
    double least = 0;
    for (int r = 0; r < size_; ++r) {
      if (step_[r] <= kTiny) continue;
      const double ratio = x_[r] / step_[r];
      if (leave < 0 || ratio < least - 1e-13 || (ratio <= least + 1e-13 && step_[r] > step_[leave])) {
        leave = r;
        least = ratio;
      }
    }
    if (leave < 0) return {};  // unbounded: cannot be, every variable has a row that ends it
    pivot(best, leave, least);
    for (double& x : x_) x = std::max(x, 0.0);
  }
  return {};  // never seen; the node is given up as not better
}

// Returns the solution that the basis stands for.
Relaxed Master::optimum() const {
  Relaxed result;
  result.price = dual_[1];
  result.load.assign(pricing_.options(), 0.0);
  result.count.assign(groups_.size(), 0.0);
  for (int r = 0; r < size_; ++r) {
    if (x_[r] <= kBelow || basis_[r].kind == kShort || basis_[r].kind == kSlack) continue;
    if (basis_[r].kind >= 0) {
      const Policy& used = policies_[basis_[r].kind];
      result.served += x_[r];
      result.mixture.emplace_back(basis_[r].kind, x_[r]);
      for (int s = 0; s < stages(); ++s) result.load[pricing_.first(s) + used.option[s]] += x_[r] * used.load[s];
      continue;
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) {  // spare instances
      const auto& inside = inside_[g];
      if (std::find(inside.begin(), inside.end(), rows_[basis_[r].row].group) != inside.end()) result.count[g] += x_[r];
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const int option : groups_[g].options) result.count[g] += result.load[option];
  }
  return result;
}

}  // namespace arlo::solve::flow
