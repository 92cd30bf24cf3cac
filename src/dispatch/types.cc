#include "dispatch/types.h"

#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace arlo::dispatch {
namespace {

constexpr std::array<std::pair<Policy, std::string_view>, 7> kPolicyNames{{{Policy::kRs, "rs"},
                                                                           {Policy::kIlb, "ilb"},
                                                                           {Policy::kIg, "ig"},
                                                                           {Policy::kInfaas, "infaas"},
                                                                           {Policy::kUniform, "uniform"},
                                                                           {Policy::kEft, "eft"},
                                                                           {Policy::kLate, "late"}}};

void require(bool holds, std::string_view field, const std::string& value, const std::string& range) {
  if (!holds) throw std::invalid_argument(std::string(field) + ": " + value + " is not " + std::string(range));
}

}  // namespace

Policy parse_policy(std::string_view name) {
  std::string names;
  for (const auto& [policy, known] : kPolicyNames) {
    if (known == name) return policy;
    names += names.empty() ? "" : ", ";
    names += known;
  }
  throw std::invalid_argument("policy: '" + std::string(name) + "' is not one of " + names);
}

std::string_view policy_name(Policy policy) {
  for (const auto& [known, name] : kPolicyNames) {
    if (known == policy) return name;
  }
  throw std::invalid_argument("policy: not a known one");
}

Batching parse_batching(std::string_view name) {
  if (name == "one") return Batching::kOne;
  if (name == "fill") return Batching::kFill;
  if (name == "deadline") return Batching::kDeadline;
  throw std::invalid_argument("batching: '" + std::string(name) + "' is not one of one, fill, deadline");
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
  require(s.variant < kVariants, "variant", std::to_string(s.variant), "below " + std::to_string(kVariants));
  require(s.capacity >= 1, "capacity", std::to_string(s.capacity), "at least 1 request");
}

}  // namespace arlo::dispatch
