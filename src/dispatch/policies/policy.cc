// The policies by name, and the ranges of the options.
#include <array>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "dispatch/policies/early_binding.h"
#include "dispatch/policies/rule.h"
#include "dispatch/scheduler.h"
#include "dispatch/state.h"
#include "dispatch/validate.h"

namespace arlo::dispatch {
namespace {

struct Known {
  Policy policy;
  std::string_view name;
  PolicyNeeds needs;
  std::unique_ptr<Rule> (*make)(const State& state);
};

std::unique_ptr<Rule> by_load(const State& state) { return make_load_rule(state.options); }
std::unique_ptr<Rule> by_finish(const State& state) { return make_eft(state.requests); }

constexpr PolicyNeeds kCounts{.times = false, .one_length = false};
constexpr PolicyNeeds kTimes{.times = true, .one_length = false};

constexpr std::array<Known, 7> kPolicies{{{Policy::kRs, "rs", kCounts, by_load},
                                          {Policy::kIlb, "ilb", kCounts, by_load},
                                          {Policy::kIg, "ig", kCounts, by_load},
                                          {Policy::kInfaas, "infaas", kCounts, by_load},
                                          {Policy::kUniform, "uniform", {.times = false, .one_length = true}, by_load},
                                          {Policy::kEft, "eft", kTimes, by_finish},
                                          {Policy::kLate, "late", kTimes, make_late}}};

const Known& known(Policy policy) {
  for (const Known& entry : kPolicies) {
    if (entry.policy == policy) return entry;
  }
  throw std::invalid_argument("policy: not a known one");
}

void require(bool holds, std::string_view field, const std::string& value, const std::string& range) {
  if (!holds) throw std::invalid_argument(std::string(field) + ": " + value + " is not " + std::string(range));
}

}  // namespace

Policy parse_policy(std::string_view name) {
  std::string names;
  for (const Known& entry : kPolicies) {
    if (entry.name == name) return entry.policy;
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  throw std::invalid_argument("policy: '" + std::string(name) + "' is not one of " + names);
}

Batching parse_batching(std::string_view name) {
  if (name == "one") return Batching::kOne;
  if (name == "fill") return Batching::kFill;
  if (name == "deadline") return Batching::kDeadline;
  throw std::invalid_argument("batching: '" + std::string(name) + "' is not one of one, fill, deadline");
}

std::string_view policy_name(Policy policy) { return known(policy).name; }

PolicyNeeds needs_of(Policy policy) { return known(policy).needs; }

std::unique_ptr<Rule> make_rule(const State& state) { return known(state.options.policy).make(state); }

std::unique_ptr<Binding> Rule::make_binding(const Parts& parts) { return std::make_unique<EarlyBinding>(parts, *this); }

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
