#include "solve/flow/pricing.h"

#include <algorithm>
#include <limits>

namespace arlo::solve::flow {

Pricing::Pricing(const std::vector<Stage>& stages, bool served_only)
    : stages_(stages), served_only_(served_only), children_(stages.size()) {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    first_.push_back(options_);
    options_ += static_cast<int>(stages[i].options.size());
    if (stages[i].parent >= 0) children_[stages[i].parent].push_back(static_cast<int>(i));
  }
  most_.resize(stages.size());
  least_cost_.resize(stages.size());
  for (std::size_t i = stages.size(); i-- > 0;) {
    const Stage& here = stages[i];
    most_[i].resize(here.accuracy.size());
    for (std::size_t at = 0; at < here.accuracy.size(); ++at) {
      const double ends = here.exit[at % here.variants];
      most_[i][at] = ends * here.accuracy[at];
      for (const int child : children_[i]) {
        const std::size_t variants = stages[child].variants;
        const auto from = most_[child].begin() + static_cast<std::ptrdiff_t>(at * variants);
        most_[i][at] += (1 - ends) * stages[child].weight * *std::max_element(from, from + stages[child].variants);
      }
    }
  }
}

bool Pricing::best(const std::vector<double>& price, const std::vector<char>& allowed, Policy* found, double* value) {
  offers_.resize(stages_.size());
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    offers_[s].clear();
    for (std::size_t o = 0; o < stages_[s].options.size(); ++o) {
      const Option& option = stages_[s].options[o];
      const std::size_t number = first_[s] + o;
      if (!allowed[number]) continue;
      offers_[s].push_back({price[number] * option.work, option.latency, static_cast<std::int16_t>(o),
                            static_cast<std::int16_t>(option.variant)});
    }
  }
  for (std::size_t s = stages_.size(); s-- > 0;) {
    least_cost_[s] = std::numeric_limits<double>::infinity();
    for (const Offer& offer : offers_[s]) {
      double cost = offer.cost;
      for (const int child : children_[s]) cost += stages_[child].factor[offer.variant] * least_cost_[child];
      if (cost < least_cost_[s]) least_cost_[s] = cost;
    }
  }
  Best best;
  if (!walk(0, 0, stages_[0].factor[0], 1.0, 0.0, &best)) return false;
  found->option = best.option;
  fill(found);
  *value = best.value;
  return true;
}

// As `walk`, where nothing comes after: most of the time goes here.
bool Pricing::leaf(int stage, std::int64_t prefix, double rows, double weight, double spent, Best* best) const {
  const Stage& here = stages_[stage];
  const double* accuracy = here.accuracy.data() + prefix * here.variants;
  const double worth = served_only_ ? 0.0 : weight;
  const double left = here.limit - spent;
  const Offer* chosen = nullptr;
  double most = 0;
  for (const Offer& offer : offers_[stage]) {
    if (offer.latency > left) continue;
    const double value = worth * here.exit[offer.variant] * accuracy[offer.variant] - offer.cost * rows;
    if (chosen == nullptr || value > most) chosen = &offer, most = value;
  }
  if (chosen == nullptr) return false;
  best->value = most;
  best->option[stage] = chosen->option;
  return true;
}

// `prefix`: the variants before this stage as one number; `rows` per second that come here, of all roots; `spent`
// seconds before it.
bool Pricing::walk(int stage, std::int64_t prefix, double rows, double weight, double spent, Best* best) const {
  if (children_[stage].empty()) return leaf(stage, prefix, rows, weight, spent, best);
  const Stage& here = stages_[stage];
  bool any = false;
  for (const Offer& offer : offers_[stage]) {
    const double time = spent + offer.latency;
    if (time > here.limit) continue;
    const std::int64_t at = prefix * here.variants + offer.variant;
    const double ends = here.exit[offer.variant];
    if (any) {  // what it could come to at most
      double most = (served_only_ ? 0.0 : weight * most_[stage][at]) - offer.cost * rows;
      for (const int child : children_[stage]) {
        most -= rows * stages_[child].factor[offer.variant] * least_cost_[child];
      }
      if (!(most > best->value)) continue;
    }
    Best mine;
    mine.value = -offer.cost * rows;
    if (!served_only_) mine.value += weight * ends * here.accuracy[at];
    mine.option[stage] = offer.option;
    bool whole = true;
    for (const int child : children_[stage]) {
      const Stage& next = stages_[child];
      Best below;
      if (!walk(child, at, rows * next.factor[offer.variant], weight * (1 - ends) * next.weight, time, &below)) {
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
