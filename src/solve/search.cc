#include "solve/search.h"

#include <algorithm>

namespace arlo::solve {
namespace {

constexpr std::size_t kMostKept = 2'000'000;  // new states of a level; bounds the memory, 40 bytes each

}  // namespace

Search::Search(const std::vector<Level>& levels, int workers, const Relaxation& relaxation)
    : levels_(levels),
      workers_(workers),
      relaxation_(relaxation),
      extra_never_hurts_(levels.back().curve.rising()),
      layers_(levels.size()),
      served_(static_cast<std::size_t>(workers) + 1),
      has_served_(static_cast<std::size_t>(workers) + 1) {}

// No completion of the state is below this.
double Search::bound(std::size_t i, const State& state) const {
  return state.cost + relaxation_.bound(i, state.rest) - relaxation_.price() * (workers_ - state.used);
}

// The tie rule: of two states of level i that cost the same, the one with more instances on the longest of the levels
// before it; where those are equal, on the next longest, and so on.
bool Search::preferred(std::size_t i, State a, State b) const {
  for (; i > 0; --i) {
    if (a.chosen != b.chosen) return a.chosen > b.chosen;
    if (a.parent == b.parent) return false;
    a = layers_[i - 1][a.parent];
    b = layers_[i - 1][b.parent];
  }
  return false;
}

// A state of level i + 1.
void Search::offer(std::size_t i, double cost, double rest, int used, int n, std::uint32_t parent) {
  const State state{cost, rest, used, n, parent};
  if (rest > 0) {
    layers_[i + 1].push_back(state);
    return;
  }
  State& known = served_[used];
  if (has_served_[used] == 0 || cost < known.cost || (cost == known.cost && preferred(i + 1, state, known))) {
    known = state;
    has_served_[used] = 1;
  }
}

// All choices of level i after `layers_[i][parent]` that may end at or below `limit`.
void Search::expand(std::size_t i, std::uint32_t parent, double limit) {
  const Level& level = levels_[i];
  const State state = layers_[i][parent];
  const double arriving = state.rest + level.demand;
  const double price = relaxation_.price();
  const int most = workers_ - state.used - level.later;
  const double room = limit - state.cost + price * (workers_ - state.used);  // for cost + price * n + what follows
  const int enough = level.enough(arriving);

  if (arriving > 0 && level.capacity == 0) {
    const double after = relaxation_.bound(i + 1, arriving);
    for (int n = level.lower; n <= most; ++n) {
      ++looked_at_;
      if (price * n + after <= room) offer(i, state.cost, arriving, state.used + n, n, parent);
    }
    return;
  }
  for (int n = level.lower; n < enough && n <= most; ++n) {
    ++looked_at_;
    const double cost = level.full_cost(n);
    const double rest = arriving - level.full(n);
    if (cost + price * n + relaxation_.bound(i + 1, rest) <= room) {
      offer(i, state.cost + cost, rest, state.used + n, n, parent);
    }
  }
  const double room_served = room - relaxation_.bound(i + 1, 0);
  const auto serve = [&](int n) {
    ++looked_at_;
    const double cost = level.curve.cost(arriving, n);
    if (cost + price * n > room_served) return false;
    offer(i, state.cost + cost, 0, state.used + n, n, parent);
    return true;
  };
  level.segments(arriving, enough, most, [&](const Segment& segment) {
    if (segment.bend < 0) {  // highest somewhere inside: from both ends
      int n = segment.lo;
      while (n <= segment.hi && serve(n)) ++n;
      for (int k = segment.hi; k > n && serve(k); --k) continue;
      return;
    }
    const auto [a, b] = segment.best(price);  // lowest there: outwards
    for (int n = a; n >= segment.lo && serve(n); --n) continue;
    for (int n = std::max(b, a + 1); n <= segment.hi && serve(n); ++n) continue;
  });
}

// Drops the states of level i that another one beats in everything.
void Search::prune(std::size_t i, std::size_t width) {
  const double marginal = levels_[i].marginal;
  Layer& layer = layers_[i];
  for (int used = 0; used <= workers_; ++used) {
    if (has_served_[used] != 0) layer.push_back(served_[used]);
    has_served_[used] = 0;
  }
  std::sort(layer.begin(), layer.end(), [&](const State& a, const State& b) {
    if (a.used != b.used) return a.used < b.used;
    if (a.rest != b.rest) return a.rest < b.rest;
    if (a.cost != b.cost) return a.cost < b.cost;
    return preferred(i, a, b);
  });
  // Of the states kept: what the others cost at least, by how much is left over. A request less left over saves at
  // least `marginal`, a worker less used can go to the last level.
  struct Step {
    double rest, key;
    int used;
  };
  std::vector<Step> steps;  // ascending in rest, descending in key
  std::size_t kept = 0;
  int used = -1;
  for (std::size_t at = 0; at < layer.size(); ++at) {
    const State state = layer[at];
    if (state.used != used && !extra_never_hurts_) steps.clear();
    used = state.used;
    const double key = state.cost + marginal * state.rest;
    auto above = std::upper_bound(steps.begin(), steps.end(), state.rest + relaxation_.near(),
                                  [](double rest, const Step& step) { return rest < step.rest; });
    if (above != steps.begin()) {
      const Step& below = *(above - 1);
      if (below.key < key || (below.key == key && (below.used < used || below.rest >= state.rest))) continue;
    }
    auto end = above;
    while (end != steps.end() && end->key >= key) ++end;
    above = steps.erase(above, end);
    steps.insert(above, {state.rest, key, used});
    layer[kept++] = state;
  }
  layer.resize(kept);
  if (layer.size() <= width) return;
  std::stable_sort(layer.begin(), layer.end(),
                   [&](const State& a, const State& b) { return bound(i, a) < bound(i, b); });
  layer.resize(width);
}

std::vector<int> Search::run(double limit, std::size_t width, std::uint64_t max_states) {
  layers_[0].assign(1, State{0, 0, 0, 0, 0});
  const std::size_t last = levels_.size() - 1;
  for (std::size_t i = 0; i < last; ++i) {
    layers_[i + 1].clear();
    for (std::uint32_t parent = 0; parent < layers_[i].size(); ++parent) {
      if (looked_at_ > max_states || layers_[i + 1].size() > kMostKept) {
        gave_up_ = true;
        std::fill(has_served_.begin(), has_served_.end(), 0);
        return {};
      }
      expand(i, parent, limit);
    }
    prune(i + 1, width);
  }
  const Level& level = levels_[last];
  State best{kInfinity, 0, 0, 0, 0};
  for (std::uint32_t parent = 0; parent < layers_[last].size(); ++parent) {
    ++looked_at_;
    const State& state = layers_[last][parent];
    const int n = workers_ - state.used;
    const double cost = state.cost + level.curve.cost(state.rest + level.demand, n);
    const State end{cost, 0, workers_, n, parent};
    if (cost < best.cost || (cost == best.cost && preferred(last + 1, end, best))) best = end;
  }
  if (!(best.cost <= limit)) return {};
  std::vector<int> instances(levels_.size());
  for (std::size_t i = levels_.size(); i > 0; --i) {
    instances[i - 1] = best.chosen;
    best = layers_[i - 1][best.parent];
  }
  return instances;
}

}  // namespace arlo::solve
