#include "solve/flow/pricing.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace arlo::solve::flow {

Pricing::Pricing(const std::vector<Stage>& stages, bool served_only)
    : stages_(stages), served_only_(served_only), children_(stages.size()) {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    first_.push_back(options_);
    options_ += static_cast<int>(stages[i].options.size());
    if (stages[i].parent >= 0) children_[stages[i].parent].push_back(static_cast<int>(i));
  }
  cheapest_.resize(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (!children_[i].empty()) continue;
    auto& order = cheapest_[i].order;
    order.resize(stages[i].options.size());
    std::iota(order.begin(), order.end(), std::int16_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::int16_t a, std::int16_t b) {
      return stages[i].options[a].latency < stages[i].options[b].latency;
    });
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
      const double energy = served_only_ ? 0 : option.energy;
      offers_[s].push_back({price[number] * option.work + energy, option.latency, static_cast<std::int16_t>(o),
                            static_cast<std::int16_t>(option.variant)});
    }
  }
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (children_[s].empty()) rank(static_cast<int>(s));
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

// Makes a step for each latency: the cheapest of the offers that are at most as slow.
void Pricing::rank(int stage) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  Cheapest& to = cheapest_[stage];
  to.latency.clear();
  to.offers.clear();
  std::vector<std::int16_t> place(stages_[stage].options.size(), -1);
  for (std::size_t i = 0; i < offers_[stage].size(); ++i)
    place[offers_[stage][i].option] = static_cast<std::int16_t>(i);
  std::vector<Offer> now(stages_[stage].variants, {kNone, kNone, 0, 0});
  for (const std::int16_t option : to.order) {
    if (place[option] < 0) continue;
    const Offer& offer = offers_[stage][place[option]];
    Offer& best = now[offer.variant];
    const bool better = offer.cost < best.cost || (offer.cost == best.cost && offer.option < best.option);
    if (best.latency < kNone && !better) continue;
    best = offer;
    if (!to.latency.empty() && to.latency.back() == offer.latency) {
      to.offers.resize(to.offers.size() - now.size());
    } else {
      to.latency.push_back(offer.latency);
    }
    to.offers.insert(to.offers.end(), now.begin(), now.end());
  }
}

// As `walk`, where nothing comes after: most of the time goes here.
bool Pricing::leaf(int stage, std::int64_t prefix, double rows, double weight, double spent, Best* best) const {
  const Stage& here = stages_[stage];
  const Cheapest& from = cheapest_[stage];
  const double left = here.limit - spent;
  const auto step = std::upper_bound(from.latency.begin(), from.latency.end(), left) - from.latency.begin();
  if (step == 0) return false;
  const double* accuracy = here.accuracy.data() + prefix * here.variants;
  const double worth = served_only_ ? 0.0 : weight;
  const Offer* offers = from.offers.data() + (step - 1) * here.variants;
  const Offer* chosen = nullptr;
  double most = 0;
  for (int variant = 0; variant < here.variants; ++variant) {
    const Offer& offer = offers[variant];
    if (offer.latency > left) continue;
    const double value = worth * here.exit[variant] * accuracy[variant] - offer.cost * rows;
    if (chosen == nullptr || value > most || (value == most && offer.option < chosen->option)) {
      chosen = &offer;
      most = value;
    }
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
  // The most that an offer could be worth.
  const auto most_of = [&](const Offer& offer) {
    double most =
        (served_only_ ? 0.0 : weight * most_[stage][prefix * here.variants + offer.variant]) - offer.cost * rows;
    for (const int child : children_[stage]) most -= rows * stages_[child].factor[offer.variant] * least_cost_[child];
    return most;
  };
  bool any = false;
  const auto look = [&](const Offer& offer) {
    const double time = spent + offer.latency;
    if (time > here.limit) return;
    const std::int64_t at = prefix * here.variants + offer.variant;
    const double ends = here.exit[offer.variant];
    Best mine;
    mine.value = -offer.cost * rows;
    if (!served_only_) mine.value += weight * ends * here.accuracy[at];
    mine.option[stage] = offer.option;
    for (const int child : children_[stage]) {
      const Stage& next = stages_[child];
      Best below;
      if (!walk(child, at, rows * next.factor[offer.variant], weight * (1 - ends) * next.weight, time, &below)) return;
      mine.value += below.value;
      for (std::size_t s = child; s < stages_.size(); ++s) {
        if (below.option[s] != 0) mine.option[s] = below.option[s];
      }
    }
    if (!any || mine.value > best->value || (mine.value == best->value && offer.option < best->option[stage])) {
      *best = mine;
      any = true;
    }
  };
  // The most promising one first: it rules out most others.
  const Offer* first = nullptr;
  double most = 0;
  for (const Offer& offer : offers_[stage]) {
    const double bound = most_of(offer);
    if (first == nullptr || bound > most) first = &offer, most = bound;
  }
  if (first == nullptr) return false;
  look(*first);
  for (const Offer& offer : offers_[stage]) {
    if (&offer != first && (!any || !(most_of(offer) < best->value))) look(offer);
  }
  return any;
}

void Pricing::fill(Policy* policy) const {
  std::array<double, kMostStages> rows{}, weight{};
  std::array<std::int64_t, kMostStages> prefix{};
  policy->value = 0;
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
    if (served_only_) continue;
    policy->value += weight[s] * here.exit[option.variant] * here.accuracy[prefix[s]] - rows[s] * option.energy;
  }
}

}  // namespace arlo::solve::flow
