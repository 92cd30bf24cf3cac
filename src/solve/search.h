// The chain of Eq. 4-5 level by level: all allocations of the levels so far that may still become the optimum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solve/level.h"
#include "solve/relaxation.h"

namespace arlo::solve {

class Search {
 public:
  Search(const std::vector<Level>& levels, int workers, const Relaxation& relaxation);

  // The best allocation whose Eq. 1 is at most `limit`; empty when there is none, or when it gave up: `max_states` have
  // been looked at since the start, or the memory for them is spent. Keeps at most `width` states a level, and where
  // that bites, the answer need not be the best.
  std::vector<int> run(double limit, std::size_t width, std::uint64_t max_states);

  std::uint64_t looked_at() const { return looked_at_; }
  bool gave_up() const { return gave_up_; }

 private:
  // Allocations of the levels before this one.
  struct State {
    double cost;  // their part of Eq. 1
    double rest;  // R: left over to this level
    int used;     // their workers
    int chosen;   // N of the level just before
    std::uint32_t parent;
  };
  using Layer = std::vector<State>;

  void expand(std::size_t i, std::uint32_t parent, double limit);
  void offer(std::size_t i, double cost, double rest, int used, int n, std::uint32_t parent);
  void prune(std::size_t i, std::size_t width);
  bool preferred(std::size_t i, State a, State b) const;
  double bound(std::size_t i, const State& state) const;

  const std::vector<Level>& levels_;
  int workers_;
  const Relaxation& relaxation_;
  bool extra_never_hurts_;
  std::vector<Layer> layers_;
  std::vector<State> served_;  // new states with nothing left over, by workers used
  std::vector<char> has_served_;
  std::uint64_t looked_at_ = 0;
  bool gave_up_ = false;
};

}  // namespace arlo::solve
