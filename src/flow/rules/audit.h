// Tests whether answers are as good as they should be. A small share of the rows is repeated the most accurate way.
// Each one settles a bet against "P(differ) <= epsilon", whose capital ever exceeds 1 / alpha with probability at most
// alpha (Ville; Waudby-Smith and Ramdas, 2024). A cascade has one epsilon, of its operating point; of a pipeline
// each row has its own, by the accuracies that were expected of both answers. Pure. arlo/cascade/drift.py is its twin.
#pragma once

#include <array>
#include <cstdint>

namespace arlo::flow {

class DisagreementTest {
 public:
  static constexpr double kAlpha = 1e-5;  // chance of a false alarm, over all time

  // epsilon and alpha lie between 0 and 1; with epsilon 0 only rows that have their own say something.
  explicit DisagreementTest(double epsilon = 0, double alpha = kAlpha);

  void add(bool disagreed) { add(disagreed, epsilon_); }
  // Adds a row that differs with probability at most `epsilon`; an epsilon of 0, 1 or more is ignored.
  void add(bool disagreed, double epsilon);
  // True once P(differ) <= epsilon is refuted; stays true.
  [[nodiscard]] bool alarm() const { return alarm_; }
  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t disagreed() const { return disagreed_; }
  [[nodiscard]] double epsilon() const { return epsilon_; }

 private:
  static constexpr std::size_t kBets = 24;  // sizes that the capital is spread over

  double epsilon_ = 0;
  double enough_;  // log of the capital that is an alarm
  std::array<double, kBets> log_capital_{};
  std::uint64_t rows_ = 0;
  std::uint64_t disagreed_ = 0;
  bool alarm_ = false;
};

}  // namespace arlo::flow
