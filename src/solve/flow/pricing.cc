#include "solve/flow/pricing.h"

namespace arlo::solve::flow {

Pricing::Pricing(const std::vector<Stage>& stages, bool served_only)
    : stages_(stages), served_only_(served_only), children_(stages.size()) {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    first_.push_back(options_);
    options_ += static_cast<int>(stages[i].options.size());
    if (stages[i].parent >= 0) children_[stages[i].parent].push_back(static_cast<int>(i));
  }
}

bool Pricing::best(const std::vector<double>& price, const std::vector<char>& allowed, Policy* found, double* value) {
  price_ = &price;
  allowed_ = &allowed;
  Best best;
  if (!walk(0, 0, stages_[0].factor[0], 1.0, 0.0, &best)) return false;
  found->option = best.option;
  fill(found);
  *value = best.value;
  return true;
}

// `prefix`: the variants before this stage as one number; `rows` per second that come here, of all roots; `spent`
// seconds before it.
bool Pricing::walk(int stage, std::int64_t prefix, double rows, double weight, double spent, Best* best) const {
  const Stage& here = stages_[stage];
  bool any = false;
  for (std::size_t o = 0; o < here.options.size(); ++o) {
    const Option& option = here.options[o];
    const int number = first_[stage] + static_cast<int>(o);
    const double time = spent + option.latency;
    if (!(*allowed_)[number] || time > here.limit) continue;
    const std::int64_t at = prefix * here.variants + option.variant;
    const double ends = here.exit[option.variant];
    Best mine;
    mine.value = -(*price_)[number] * rows * option.work;
    if (!served_only_) mine.value += weight * ends * here.accuracy[at];
    mine.option[stage] = static_cast<std::int16_t>(o);
    bool whole = true;
    for (const int child : children_[stage]) {
      const Stage& next = stages_[child];
      Best below;
      if (!walk(child, at, rows * next.factor[option.variant], weight * (1 - ends) * next.weight, time, &below)) {
        whole = false;
        break;
      }
      mine.value += below.value;
      for (std::size_t s = child; s < stages_.size(); ++s) {
        if (below.option[s] != 0) mine.option[s] = below.option[s];
      }
    }
    if (whole && (!any || mine.value > best->value)) {
      *best = mine;
      any = true;
    }
  }
  return any;
}

void Pricing::fill(Policy* policy) const {
  std::array<double, kMostStages> rows{}, weight{};
  std::array<std::int64_t, kMostStages> prefix{};
  policy->accuracy = 0;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Stage& here = stages_[s];
    const Option& option = here.options[policy->option[s]];
    const int parent = here.parent;
    if (parent < 0) {
      rows[s] = here.factor[0];
      weight[s] = 1;
    } else {
      const int variant = stages_[parent].options[policy->option[parent]].variant;
      rows[s] = rows[parent] * here.factor[variant];
      weight[s] = weight[parent] * (1 - stages_[parent].exit[variant]) * here.weight;
    }
    prefix[s] = (parent < 0 ? 0 : prefix[parent]) * here.variants + option.variant;
    policy->load[s] = rows[s] * option.work;
    if (!served_only_) policy->accuracy += weight[s] * here.exit[option.variant] * here.accuracy[prefix[s]];
  }
}

}  // namespace arlo::solve::flow
