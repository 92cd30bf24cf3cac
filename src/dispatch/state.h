// The scheduler's state: the instances, the requests, and where each of them waits.
#pragma once

#include <array>
#include <cstdint>

#include "dispatch/lines/bodies.h"
#include "dispatch/lines/deadlines.h"
#include "dispatch/lines/fair_ranks.h"
#include "dispatch/lines/level_fifos.h"
#include "dispatch/lines/overdue.h"
#include "dispatch/lines/shares.h"
#include "dispatch/multi_level_queue.h"
#include "dispatch/request.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

struct State {
  // `timed`: the policy weighs execution times.
  State(const Options& given, bool by_times) : options(given), timed(by_times), queue(by_times) {}

  Options options;
  // The books of timed.h are kept: from the start for a policy that weighs times, for the others from the first request
  // on that has a time limit.
  bool timed;
  MultiLevelQueue queue;
  RequestSlab requests;
  Batches batches;
  LevelFifos lines;  // those bound to no instance, by ideal level: parked, or waiting for late binding
  OverdueLines overdue;
  Deadlines deadlines;
  FairRanks ranks{0};
  // Ranks of overdue requests: refusals and expiries among them cost no client its turns.
  FairRanks overdue_ranks{1};
  bool held = false;  // requests that arrive wait for others that come with them
  std::int32_t queued = 0;
  std::array<std::int32_t, kVariants> queued_of{};  // the same by variant
  Shares shares;
  Bodies bodies;
  std::int32_t in_flight = 0;
  std::array<std::int32_t, kVariants> in_flight_of{};

  [[nodiscard]] std::int32_t ideal(const Request& r) const { return queue.ideal(r.variant(), r.length); }
  // What the instance holds for this request, which it fits.
  [[nodiscard]] const Bundle& cost(const Instance& x, const Request& r) const { return queue.cost(x, r.variant()); }
  // Batches are formed here, not at the workers.
  [[nodiscard]] bool batching() const { return options.batching != Batching::kOne; }
  // Instances may be shared by variants.
  [[nodiscard]] bool shared() const { return queue.variants() > 1; }
  // Some that are overdue wait for a variant that the instance holds.
  [[nodiscard]] bool any_overdue(const Instance& x) const {
    if (overdue.total() == 0) return false;
    for (const Held& one : queue.held(x)) {
      if (overdue.total(one.variant) > 0) return true;
    }
    return false;
  }
  // It waits in the line of a body, and the batch that it starts in is chosen (turns.h).
  [[nodiscard]] bool chosen_late(const Request& r) const {
    return bodies.of(r.variant()) != nullptr && r.instance == kNone && !r.overdue && (r.rank & kFirstTry) != 0;
  }
  // Some active instance is long enough.
  [[nodiscard]] bool fits(std::int32_t level) const { return queue.first_fitting(level) != queue.groups(); }
};

}  // namespace arlo::dispatch
