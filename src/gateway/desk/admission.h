// Decides about a request before any of its rows runs. Not synchronised: the router's lock covers it.
#pragma once

#include <arlo/v1/config.pb.h>

#include <vector>

#include "dispatch/scheduler.h"
#include "gateway/desk/call.h"
#include "gateway/fleet/fleet.h"

namespace arlo::gateway {

class Admission {
 public:
  Admission(const v1::GatewayConfig& config, dispatch::Scheduler& scheduler, const Fleet& fleet)
      : config_(config), scheduler_(scheduler), fleet_(fleet) {}

  // Decides whether a request of several rows is bulk, and sets its deadline if the client sets none. A fault: it
  // cannot be answered in time, or there is no room for it.
  MaybeFault weigh(Call& call, TimeNs now);
  // The call has ended, which shows how long a request in turn takes.
  void learn_delay(const Call& call, TimeNs now);
  // Why the scheduler did not admit the row.
  [[nodiscard]] Fault refusal(const Row& row, const dispatch::Admitted& admitted, TimeNs now);

 private:
  [[nodiscard]] MaybeFault room_for(const Call& call, dispatch::VariantId variant, TimeNs ahead) const;
  // Actual over forecast time of a request in turn: interactive rows go before it, and machines are shared.
  [[nodiscard]] double delay_of(dispatch::VariantId variant, TimeNs now) const;

  const v1::GatewayConfig& config_;
  dispatch::Scheduler& scheduler_;
  const Fleet& fleet_;
  std::vector<std::int32_t> lengths_;  // of the rows being weighed
  struct Delay {
    double times;
    TimeNs at;
  };
  std::vector<Delay> delays_;  // by variant
};

}  // namespace arlo::gateway
