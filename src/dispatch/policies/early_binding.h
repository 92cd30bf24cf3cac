// Early binding: a request goes to an instance on arrival, and waits in that one's FIFO until it has room.
#pragma once

#include <vector>

#include "dispatch/binding.h"

namespace arlo::dispatch {

class EarlyBinding final : public Binding {
 public:
  EarlyBinding(const Parts& parts, Rule& rule) : Binding(parts), rule_(rule) {}

  Admitted arrive(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) override;
  TimeNs expected_finish(const Arrival& arrival, std::int32_t level, TimeNs now) override;
  TimeNs expected_wait(std::int32_t length, std::int32_t level, TimeNs now) override;
  Admission place(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) override;
  RequestHandle next_for(InstanceId, TimeNs) override { return kNone; }
  bool on_time_elsewhere(RequestHandle, TimeNs) override { return false; }
  void joined(InstanceId id, TimeNs now, Actions& out) override;
  void draining(InstanceId, TimeNs) override {}
  void look_again(TimeNs, Actions&) override {}

 private:
  // Returns the instance for a request of this rank and limit: `chosen`, or if it cannot be on time there, the one
  // where it would finish first. `*finish` is when it would finish.
  InstanceId in_time(InstanceId chosen, const Request& r, TimeNs now, TimeNs* finish) const;
  Admission bind(RequestHandle h, InstanceId id, TimeNs now, Actions& out);
  std::vector<RequestHandle> take_fitting(InstanceId id);

  Rule& rule_;
};

}  // namespace arlo::dispatch
