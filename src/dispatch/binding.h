// Binds a request to an instance on its arrival or when it starts. Both ways to wait share one interface; the policy's
// rule decides where the request goes (rule.h).
//
// All of these concern requests that some active instance fits; the scheduler parks the others.
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
};

}  // namespace arlo::dispatch
