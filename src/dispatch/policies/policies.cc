#include "dispatch/policies/policies.h"

#include "dispatch/policies/early_binding.h"

namespace arlo::dispatch {

PolicyNeeds needs_of(Policy policy) {
  return {.times = policy == Policy::kEft || policy == Policy::kLate, .one_length = policy == Policy::kUniform};
}

std::unique_ptr<Rule> make_rule(const State& state) {
  switch (state.options.policy) {
    case Policy::kEft:
      return make_eft(state.requests);
    case Policy::kLate:
      return make_late(state);
    default:
      return make_load_rule(state.options);
  }
}

std::unique_ptr<Binding> Rule::make_binding(const Parts& parts) { return std::make_unique<EarlyBinding>(parts, *this); }

}  // namespace arlo::dispatch
