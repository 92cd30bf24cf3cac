// The rows: from the request that brings them to the answer, through the scheduler and the workers.
//
// Not synchronised: the router's lock covers it. What has to be done outside the lock is left
// in the Effects given.
//
// A row's room at a worker is free when the worker is through, not when a client gives up: a call that is cancelled, or
// whose deadline comes, is answered at once, and its UpstreamCall stays until the worker's answer comes and is dropped.
#pragma once

#include <arlo/v1/config.pb.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "dispatch/scheduler.h"
#include "gateway/desk/books.h"
#include "gateway/desk/call.h"
#include "gateway/desk/effects.h"
#include "gateway/desk/waiting_rows.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/upstream.h"

namespace arlo::gateway {

class Desk {
 public:
  Desk(const v1::GatewayConfig& config, dispatch::Scheduler& scheduler, Fleet& fleet, Books& books,
       UpstreamListener& listener);

  void submit(Call& call, TimeNs now, Effects& effects);
  void cancel(Call& call, TimeNs now, Effects& effects);
  // The worker is through. `row`: taken from `upstream`, or nothing when it had been taken before; `fault` says why its
  // answer is none.
  void answered(UpstreamCall& upstream, Row* row, Reply reply, Fault fault, TimeNs now, Effects& effects);
  // Turns the scheduler's actions into effects.
  void settle(Effects& effects, TimeNs now);
  // What time alone changes: deadlines, rows that no instance fits.
  void tick(TimeNs now, Effects& effects);

  [[nodiscard]] std::uint32_t at_workers() const { return at_workers_; }  // upstream calls under way
  void cancel_all();                                                      // of these

 private:
  void begin(Row& row, const dispatch::Action& action, TimeNs now, Effects& effects);
  void expired(Row& row, TimeNs now, Effects& effects);
  void lost(const dispatch::Action& action, TimeNs now, Effects& effects);
  void conclude(Row& row, const std::shared_ptr<Instance>& instance, bool lost, Reply reply, Fault fault, TimeNs now,
                Effects& effects);
  bool try_again(Row& row, dispatch::InstanceId avoid, TimeNs now, Effects& effects);
  void fail(Call& call, Fault fault, std::uint32_t row, TimeNs now, Effects& effects);
  void withdraw(Row& row, TimeNs now, Effects& effects);
  bool take_back(UpstreamCall* upstream, TimeNs now, Effects& effects);
  void end(Row& row, TimeNs now, Effects& effects);
  [[nodiscard]] Fault refusal(const Call& call, std::int32_t length, const dispatch::Admitted& admitted,
                              TimeNs now) const;
  void check_fit(TimeNs now, Effects& effects);
  void check_deadlines(TimeNs now, Effects& effects);
  UpstreamCall*& running(dispatch::RequestHandle handle);

  const v1::GatewayConfig& config_;
  dispatch::Scheduler& scheduler_;
  Fleet& fleet_;
  Books& books_;
  UpstreamListener& listener_;
  WaitingRows waiting_;
  std::vector<UpstreamCall*> running_;             // by the scheduler's handle: rows that take room at a worker
  std::unordered_set<UpstreamCall*> left_behind_;  // at instances that were ejected
  std::uint32_t at_workers_ = 0;
  TimeNs next_deadline_ = dispatch::kNever;  // of a running row; may be early, never late
  bool some_unfit_ = false;                  // at the last look, some waiting row fitted no instance
};

}  // namespace arlo::gateway
