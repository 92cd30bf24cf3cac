// Names of the policies and the ranges of the options.
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "dispatch/scheduler.h"
#include "dispatch/validate.h"

namespace arlo::dispatch {
namespace {

constexpr std::array<std::pair<Policy, std::string_view>, 7> kNames{{{Policy::kRs, "rs"},
                                                                     {Policy::kIlb, "ilb"},
                                                                     {Policy::kIg, "ig"},
                                                                     {Policy::kInfaas, "infaas"},
                                                                     {Policy::kUniform, "uniform"},
                                                                     {Policy::kEft, "eft"},
                                                                     {Policy::kLate, "late"}}};

void require(bool holds, std::string_view field, const std::string& value, std::string_view range) {
  if (!holds) throw std::invalid_argument(std::string(field) + ": " + value + " is not " + std::string(range));
}

}  // namespace

Policy parse_policy(std::string_view name) {
  std::string known;
  for (const auto& [policy, text] : kNames) {
    if (text == name) return policy;
    known += known.empty() ? "" : ", ";
    known += text;
  }
  throw std::invalid_argument("policy: '" + std::string(name) + "' is not one of " + known);
}

std::string_view policy_name(Policy policy) {
  for (const auto& [known, text] : kNames) {
    if (known == policy) return text;
  }
  return "unknown";
}

void validate(const Options& o) {
  require(std::isfinite(o.lambda) && o.lambda > 0, "lambda", std::to_string(o.lambda), "above 0");
  require(o.alpha > 0 && o.alpha <= 1, "alpha", std::to_string(o.alpha), "in (0, 1]");
  require(o.max_peek >= 1, "max_peek", std::to_string(o.max_peek), "at least 1");
  require(o.max_queued >= 0, "max_queued", std::to_string(o.max_queued), "at least 0");
}

void validate(const RuntimeSpec& s) {
  require(s.max_length >= 1 && s.max_length <= kMaxLength, "max_length", std::to_string(s.max_length),
          "in 1 to 1048576 tokens");
  require(s.max_batch >= 1 && s.max_batch <= kMaxBatch, "max_batch", std::to_string(s.max_batch), "in 1 to 65536 rows");
  require(s.capacity >= 1, "capacity", std::to_string(s.capacity), "at least 1 request");
}

}  // namespace arlo::dispatch
