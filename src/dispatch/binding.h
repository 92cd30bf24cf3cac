// Binds a request to an instance on its arrival or when it starts. Both ways to wait share one interface; the policy's
// rule decides where the request goes (rule.h).
//
// All of these concern requests that some active instance fits; the scheduler parks the others.
#pragma once

#include "dispatch/rule.h"
#include "dispatch/state.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

class Forecast;
class Ledger;
class Turns;

// The parts of a scheduler that bindings work with.
struct Parts {
  State& state;
  Ledger& ledger;
  Forecast& forecast;
  Turns& turns;
};

class Binding {
 public:
  virtual ~Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  // `arrival.due` is what the request aims at, `arrival.client` its place in FairRanks.
  virtual Admitted arrive(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) = 0;
  // Returns when this arrival would finish, behind all waiting requests.
  virtual TimeNs expected_finish(const Arrival& arrival, std::int32_t level, TimeNs now) = 0;
  // Returns when an instance would begin such a request, behind all that wait for the instances that fit it.
  virtual TimeNs expected_wait(std::int32_t length, std::int32_t level, TimeNs now) = 0;
  // Places a request of any history that is in no FIFO and not counted as waiting.
  virtual Admission place(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) = 0;
  // The request in a line, bound to none, that an instance with room should start now; kNone: none.
  virtual RequestHandle next_for(InstanceId id, TimeNs now) = 0;
  // The instance whose turn it is cannot finish this request of a line in time. True: another one will.
  virtual bool on_time_elsewhere(RequestHandle h, TimeNs now) = 0;
  // An instance has entered service.
  virtual void joined(InstanceId id, TimeNs now, Actions& out) = 0;
  // An instance drains now; its bound requests that fit elsewhere have moved already.
  virtual void draining(InstanceId id, TimeNs now) = 0;
  // Instances have gone, or time has passed.
  virtual void look_again(TimeNs now, Actions& out) = 0;

 protected:
  explicit Binding(const Parts& parts)
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
