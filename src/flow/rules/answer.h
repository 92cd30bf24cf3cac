// Combines the answers that a row has had so far into the client's, with the reason why the row ended. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace arlo::flow {

// Why a row of a cascade ended where it did.
enum class Reason : std::uint8_t {
  kConfident,    // the rule was content
  kFinal,        // the last stage has answered
  kClientLimit,  // the client wanted no later stage
  kDeadline,     // there was no time for a later stage
  kLoad,         // the price was above 0; at 0 it would have gone on
  kStageAbsent,  // a later stage was wanted, and no worker has it
  kStageFailed,  // a later stage failed it
};
inline constexpr std::size_t kReasons = 7;
std::string_view reason_name(Reason reason);
// Answered by an earlier stage than the rule wanted.
constexpr bool degraded(Reason reason) { return reason >= Reason::kDeadline; }

enum class Ensemble : std::uint8_t {
  kNone,
  kRaw,         // of softmax(z)
  kCalibrated,  // of the calibrated probabilities
};

// The answers of a row so far, as one (Tabi Eq. 6): sum of w_s p_s / sum of w_s.
class Mix {
 public:
  void add(double weight, std::span<const double> probabilities);
  [[nodiscard]] bool several() const { return stages_ > 1; }
  // [labels]
  void probabilities(std::vector<double>& out) const;

 private:
  std::vector<double> sum_;
  double weights_ = 0;
  int stages_ = 0;
};

}  // namespace arlo::flow
