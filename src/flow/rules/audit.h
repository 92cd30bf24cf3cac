// Whether answers are as good as they should be. A small share of the rows is asked again the most accurate way; after
// each one a bet against "P(differ) <= epsilon" is settled, whose capital exceeds 1 / alpha with probability alpha at
// most, ever (Ville; Waudby-Smith and Ramdas, 2024). A cascade has one epsilon, of its operating point; of a pipeline
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
  // Of a row that differs with probability `epsilon` at most; one of 0, 1 or more says nothing.
  void add(bool disagreed, double epsilon);
  // P(differ) <= epsilon is refuted. It stays.
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
