// What the scheduler knows: the instances, the requests, and where each of them waits.
#pragma once

#include <cstdint>

#include "dispatch/deadlines.h"
#include "dispatch/fair_ranks.h"
#include "dispatch/level_fifos.h"
#include "dispatch/multi_level_queue.h"
#include "dispatch/overdue.h"
#include "dispatch/request.h"
#include "dispatch/scheduler.h"

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
  // Of those that are overdue: what is refused or expires among them costs no client its turns.
  FairRanks overdue_ranks{1};
  bool held = false;  // requests that arrive wait for others that come with them
  std::int32_t queued = 0;
  std::int32_t in_flight = 0;

  [[nodiscard]] std::int32_t ideal(const Request& r) const { return queue.ideal(r.length); }
  // Batches are formed here, not at the workers.
  [[nodiscard]] bool batching() const { return options.batching != Batching::kOne; }
  // Some active instance is long enough.
  [[nodiscard]] bool fits(std::int32_t level) const { return queue.first_fitting(level) != queue.groups(); }
};

}  // namespace arlo::dispatch
