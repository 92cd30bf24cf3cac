// Late binding: a request waits in the line of its ideal level and is bound when it starts. See late.cc for the rules.
#pragma once

#include "dispatch/binding.h"
#include "dispatch/policies/late/late.h"

namespace arlo::dispatch {

class LateBinding final : public Binding {
 public:
  LateBinding(const Parts& parts, Late& rule) : Binding(parts), rule_(rule) {}

  Admitted arrive(Tag tag, const Arrival& arrival, std::int32_t level, TimeNs now, Actions& out) override;
  TimeNs expected_finish(const Arrival& arrival, std::int32_t level, TimeNs now) override;
  TimeNs expected_wait(std::int32_t length, std::int32_t level, TimeNs now) override;
  Admission place(RequestHandle h, std::int32_t level, TimeNs now, Actions& out) override;
  RequestHandle next_for(InstanceId id, TimeNs now) override { return rule_.next_for(id, now); }
  bool on_time_elsewhere(RequestHandle h, TimeNs now) override;
  void joined(InstanceId id, TimeNs now, Actions& out) override;
  void draining(InstanceId id, TimeNs now) override;
  void look_again(TimeNs now, Actions& out) override;

 private:
  // Returns where an arrival would start now; kNone: it would wait. `first`: none waits before it.
  InstanceId room_for(const Arrival& arrival, std::int32_t home, std::int32_t level, bool* first, TimeNs now);
  TimeNs finish_of(const Arrival& arrival, std::int32_t home, InstanceId id, Rank rank, TimeNs now);
  void balance(std::int32_t home, TimeNs now, Actions& out);
  [[nodiscard]] bool may_serve(InstanceId id) const;

  Late& rule_;
};

}  // namespace arlo::dispatch
