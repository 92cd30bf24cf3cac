#include "flow/rules/audit.h"

#include <algorithm>
#include <cmath>

namespace arlo::flow {

DisagreementTest::DisagreementTest(double epsilon, double alpha) : epsilon_(epsilon), enough_(-std::log(alpha)) {}

// A bet of size b multiplies its capital by 1 + b (x - epsilon), x being 1 where the answers differ.
void DisagreementTest::add(bool disagreed, double epsilon) {
  constexpr double kLeast = 0.01;
  constexpr double kMost = 0.95;  // of 1 / epsilon: no capital is ever lost whole
  ++rows_;
  disagreed_ += disagreed ? 1 : 0;
  if (epsilon <= 0 || epsilon >= 1 || alarm_) return;
  for (std::size_t i = 0; i < kBets; ++i) {
    const double size = kLeast * std::pow(kMost / kLeast, static_cast<double>(i) / (kBets - 1)) / epsilon;
    log_capital_[i] += std::log1p(size * ((disagreed ? 1 : 0) - epsilon));
  }
  const double top = *std::max_element(log_capital_.begin(), log_capital_.end());
  double mean = 0;
  for (const double log_capital : log_capital_) mean += std::exp(log_capital - top) / kBets;
  alarm_ = top + std::log(mean) >= enough_;
}

}  // namespace arlo::flow
