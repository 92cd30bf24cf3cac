// What a decision under the router's lock asks for, to be done once the lock is released.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dispatch/scheduler.h"

namespace arlo::gateway {

class Audit;
class Call;
struct PartialAnswer;
struct Row;
class UpstreamCall;
struct Instance;

struct Effects {
  dispatch::Actions actions;  // of the scheduler, not yet turned into the effects below
  std::vector<UpstreamCall*> starts;
  std::vector<Call*> releases;  // one for each row that has ended
  // To be written, of rows that have ended (null: of a visit), and submitted.
  std::vector<std::pair<Audit*, const Row*>> audits;
  std::vector<std::pair<Call*, std::unique_ptr<PartialAnswer>>> partials;
  std::vector<std::shared_ptr<Instance>> checks;
  std::vector<std::function<void()>> calls;
};

}  // namespace arlo::gateway
