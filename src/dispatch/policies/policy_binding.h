// The common base of the policies' bindings: the parts of a scheduler that they work with.
#pragma once

#include "dispatch/binding.h"
#include "dispatch/forecast.h"
#include "dispatch/ledger.h"
#include "dispatch/rule.h"
#include "dispatch/state.h"
#include "dispatch/turns.h"

namespace arlo::dispatch {

struct Parts {
  State& state;
  Ledger& ledger;
  Forecast& forecast;
  Turns& turns;
};

class PolicyBinding : public Binding {
 protected:
  explicit PolicyBinding(const Parts& parts)
      : s_(parts.state), ledger_(parts.ledger), forecast_(parts.forecast), turns_(parts.turns) {}

  // The instance that takes a request which may have one to avoid; kNone: none does now.
  InstanceId pick_for(Rule& rule, RequestHandle h, std::int32_t level, TimeNs now) {
    const Request& r = s_.requests[h];
    const InstanceId avoid = r.avoid;
    const bool hide = avoid != kNone && s_.queue.present(avoid) && s_.queue[avoid].state == InstanceState::kActive;
    if (hide) s_.queue.deactivate(avoid);
    const bool another = hide && s_.fits(level);
    if (hide && !another) s_.queue.activate(avoid, rule.key(s_.queue[avoid]));
    const GroupIndex g = rule.pick(s_.queue, level, r.length, now);
    const InstanceId id = g == s_.queue.groups() ? kNone : s_.queue.head(g).id;
    if (another) s_.queue.activate(avoid, rule.key(s_.queue[avoid]));
    return id;
  }

  State& s_;
  Ledger& ledger_;
  Forecast& forecast_;
  Turns& turns_;
};

}  // namespace arlo::dispatch
