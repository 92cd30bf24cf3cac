#include "flow/cascade/drift.h"

#include <algorithm>
#include <cmath>

namespace arlo::flow {

DisagreementTest::DisagreementTest(double epsilon, double alpha) : epsilon_(epsilon), enough_(-std::log(alpha)) {
  // A bet of size b multiplies its capital by 1 + b (x - epsilon), x being 1 where the answers differ.
  constexpr double kLeast = 0.01;
  constexpr double kMost = 0.95;  // of 1 / epsilon: no capital is ever lost whole
  for (std::size_t i = 0; i < kBets; ++i) {
    const double size = kLeast * std::pow(kMost / kLeast, static_cast<double>(i) / (kBets - 1)) / epsilon;
    won_[i] = std::log1p(size * (1 - epsilon));
    lost_[i] = std::log1p(-size * epsilon);
  }
}

void DisagreementTest::add(bool disagreed) {
  ++rows_;
  disagreed_ += disagreed ? 1 : 0;
  if (epsilon_ <= 0 || alarm_) return;
  for (std::size_t i = 0; i < kBets; ++i) log_capital_[i] += disagreed ? won_[i] : lost_[i];
  const double top = *std::max_element(log_capital_.begin(), log_capital_.end());
  double mean = 0;
  for (const double log_capital : log_capital_) mean += std::exp(log_capital - top) / kBets;
  alarm_ = top + std::log(mean) >= enough_;
}

}  // namespace arlo::flow
