#include "flow/rules/answer.h"

namespace arlo::flow {

std::string_view reason_name(Reason reason) {
  static constexpr std::string_view kNames[kReasons] = {"confident", "final",        "client_limit", "deadline",
                                                        "load",      "stage_absent", "stage_failed"};
  return kNames[static_cast<std::size_t>(reason)];
}

void Mix::add(double weight, std::span<const double> probabilities) {
  sum_.resize(probabilities.size());
  for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += weight * probabilities[i];
  weights_ += weight;
  ++stages_;
}

void Mix::probabilities(std::vector<double>& out) const {
  out.resize(sum_.size());
  for (std::size_t i = 0; i < sum_.size(); ++i) out[i] = sum_[i] / weights_;
}

}  // namespace arlo::flow
