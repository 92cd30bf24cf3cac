// When a request is bound to an instance: on its arrival, or when it starts. Two ways to wait, behind one interface;
// the policy's rule says where it goes (rule.h).
//
// All of these are about requests that some active instance fits; what none fits is parked by the scheduler.
#pragma once

#include "dispatch/types.h"

namespace arlo::dispatch {

class Binding {
 public:
  Binding() = default;
  virtual ~Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  // `arrival.due` is what the request aims at, `arrival.client` its place in FairRanks.
  virtual Admitted arrive(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) = 0;
  // When this arrival would finish, behind all that waits.
  virtual TimeNs expected_finish(const Arrival& arrival, std::int32_t level, TimeNs now) = 0;
  // When an instance would begin with such a request, behind all that waits for the instances that fit it.
  virtual TimeNs expected_wait(std::int32_t length, std::int32_t level, TimeNs now) = 0;
  // A request of any history that is in no FIFO and not counted as waiting.
  virtual Admission place(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) = 0;
  // The request in a line, bound to none, that an instance with room should start now; kNone: none.
  virtual RequestHandle next_for(InstanceId id, TimeNs now) = 0;
  // The instance whose turn it is cannot have this one of a line finished in time. True: another will.
  virtual bool on_time_elsewhere(RequestHandle h, TimeNs now) = 0;
  // An instance has entered service.
  virtual void joined(InstanceId id, TimeNs now, Actions& out) = 0;
  // An instance drains now; what was bound to it and fits elsewhere is there already.
  virtual void draining(InstanceId id, TimeNs now) = 0;
  // Instances have gone, or time has passed.
  virtual void look_again(TimeNs now, Actions& out) = 0;
};

}  // namespace arlo::dispatch
