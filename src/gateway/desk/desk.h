// The desk keeps rows from request to answer, through the scheduler and the workers. Its parts do one job each:
// Admission decides about a request before its rows run, Cascades and Visits about a row between stages, Audits which
// answers are checked; the books count.
//
// Not synchronised: the router's lock covers it. Work for outside the lock goes into the given Effects.
//
// A row's slot at a worker is freed when the worker is done, not when the client gives up: a call that is cancelled, or
// reaches its deadline, is answered at once, and its UpstreamCall stays until the worker's answer comes and is dropped.
#pragma once

#include <arlo/v1/config.pb.h>

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "dispatch/scheduler.h"
#include "gateway/desk/admission.h"
#include "gateway/desk/audit.h"
#include "gateway/desk/books.h"
#include "gateway/desk/call.h"
#include "gateway/desk/cascades.h"
#include "gateway/desk/effects.h"
#include "gateway/desk/visits.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/upstream.h"

namespace arlo::gateway {

class Desk {
 public:
  // `books`: by the variant of each model.
  Desk(const v1::GatewayConfig& config, dispatch::Scheduler& scheduler, Fleet& fleet, const BooksByVariant& books,
       UpstreamListener& listener, AuditListener& audits);

  void submit(Call& call, TimeNs now, Effects& effects);
  void cancel(Call& call, TimeNs now, Effects& effects);
  // The worker is done, and the rows have been taken from `upstream`; `fault` gives the reason for a failed answer.
  void answered(UpstreamCall& upstream, Reply reply, const Fault& fault, TimeNs now, Effects& effects);
  // Turns the scheduler's actions into effects.
  void settle(Effects& effects, TimeNs now);
  // Handles time: deadlines, and rows that fit no instance.
  void tick(TimeNs now, Effects& effects);

  // Requests made by the gateway.
  void audit_ended(Audit& audit);
  void stop_audits(TimeNs now, Effects& effects);
  [[nodiscard]] bool own_open() const { return !audits_.open().empty(); }
  void fill_flow(v1::Stats* out, const ModelSpec* model) const;
  [[nodiscard]] const Audits& audits() const { return audits_; }
  [[nodiscard]] std::int32_t price(dispatch::VariantId cascade) const { return cascades_.price(cascade); }
  [[nodiscard]] std::uint32_t at_workers() const { return at_workers_; }  // upstream calls under way
  void cancel_all();                                                      // all of those

  // ---- for its parts ----
  // Gives the row to the scheduler; without a handle it is refused.
  dispatch::Admitted arrive(Row& row, TimeNs deadline, TimeNs now, Effects& effects);
  // Counts it for the model that answers next.
  void count_arrival(const Row& row) {
    books(row).arrived(row.length, scheduler_.ideal_level(row.length, row.model().variant));
  }
  // Ends a call without an answer, including all its rows, wherever they are.
  void fail(Call& call, Fault fault, std::uint32_t row, TimeNs now, Effects& effects);
  // Ends a row that neither waits nor runs.
  void end(Row& row, TimeNs now, Effects& effects);
  // Takes a waiting row out of its line. False: it has started, or ended.
  bool pull_back(Row& row, TimeNs now, Effects& effects);

 private:
  // Starts the rows of the action at `at` as one batch. Returns the index of the next action.
  std::size_t begin(std::size_t at, TimeNs now, Effects& effects);
  void send(std::span<Row* const> rows, const std::shared_ptr<Instance>& instance, const RuntimeInfo& runtime,
            TimeNs now, Effects& effects);
  void expired(Row& row, bool evicted, TimeNs now, Effects& effects);
  void lost(const dispatch::Action& action, TimeNs now, Effects& effects);
  struct Answer {  // a worker's answer to all rows of an UpstreamCall
    std::shared_ptr<Instance> instance;
    bool lost;  // the instance had left
    Reply reply;
    const Fault& fault;
    bool doubtful;                     // the instance has failed other rows as well
    std::shared_ptr<Failure> failure;  // of this instance; null: another kind of reply
  };
  void conclude(Row& row, const Answer& answer, TimeNs now, Effects& effects);
  bool try_again(Row& row, dispatch::InstanceId avoid, std::int32_t most, TimeNs now, Effects& effects);
  void withdraw(Row& row, TimeNs now, Effects& effects);
  // Takes the row out of waiting or running; the caller ends it. False: its answer is in hand, and the holder ends it.
  bool leaves(Row& row, TimeNs now, Effects& effects);
  bool take_back(UpstreamCall::Part& part, TimeNs now, Effects& effects);
  void check_fit(TimeNs now, Effects& effects);
  void check_deadlines(TimeNs now, Effects& effects);
  void end_late(Row& row, TimeNs now, Effects& effects);
  UpstreamCall::Part*& running(dispatch::RequestHandle handle);
  // The books of the model that the client asked for, and of the model that answers now.
  [[nodiscard]] Books& books(const Call& call) const { return *books_[call.model->variant]; }
  [[nodiscard]] Books& books(const Row& row) const { return *books_[row.model().variant]; }

  const v1::GatewayConfig& config_;
  dispatch::Scheduler& scheduler_;
  Fleet& fleet_;
  const BooksByVariant& books_;
  UpstreamListener& listener_;
  WaitingRows waiting_;
  std::vector<UpstreamCall::Part*> running_;       // by the scheduler's handle: rows that hold a slot at a worker
  std::unordered_set<UpstreamCall*> left_behind_;  // at instances that were ejected
  std::uint32_t at_workers_ = 0;
  std::vector<Row*> batch_;                  // being started
  TimeNs next_deadline_ = dispatch::kNever;  // of a running row; may be early, never late
  bool some_unfit_ = false;                  // at the last look, some waiting row fitted no instance
  FlowBooks flow_books_;
  Audits audits_;
  Admission admission_;
  Cascades cascades_;
  Visits visits_;
};

}  // namespace arlo::gateway
