// The effects of a decision made under the router's lock, carried out after the lock is released.
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
  dispatch::Actions actions;  // scheduler actions not yet turned into the effects below
  std::vector<UpstreamCall*> starts;
  std::vector<Call*> releases;  // one for each row that has ended
  // Audits to write, for rows that have ended (null: of a visit), and submit.
  std::vector<std::pair<Audit*, const Row*>> audits;
  std::vector<std::pair<Call*, std::unique_ptr<PartialAnswer>>> partials;
  std::vector<std::shared_ptr<Instance>> checks;
  std::vector<std::function<void()>> calls;
};

}  // namespace arlo::gateway
