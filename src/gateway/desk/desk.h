// The desk keeps rows from request to answer, through the scheduler and the workers.
//
// Not synchronised: the router's lock covers it. Work for outside the lock goes into the given Effects.
//
// A row's slot at a worker is freed when the worker is done, not when the client gives up: a call that is cancelled, or
// reaches its deadline, is answered at once, and its UpstreamCall stays until the worker's answer comes and is dropped.
#pragma once

#include <arlo/v1/config.pb.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "dispatch/scheduler.h"
#include "flow/cascade/price.h"
#include "gateway/desk/audit.h"
#include "gateway/desk/books.h"
#include "gateway/desk/call.h"
#include "gateway/desk/effects.h"
#include "gateway/desk/flow_books.h"
#include "gateway/desk/flow_call.h"
#include "gateway/desk/journey.h"
#include "gateway/desk/waiting_rows.h"
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
  [[nodiscard]] std::int32_t price(dispatch::VariantId cascade) const { return prices_.at(cascade).now(); }
  [[nodiscard]] std::uint32_t at_workers() const { return at_workers_; }  // upstream calls under way
  void cancel_all();                                                      // all of those

 private:
  // Decides whether a request of several rows is bulk, and sets its deadline if the client sets none. A fault: it
  // cannot be answered in time, or there is no room for it.
  MaybeFault weigh(Call& call, TimeNs now);
  [[nodiscard]] MaybeFault room_for(const Call& call, dispatch::VariantId variant, TimeNs ahead) const;
  // Actual over forecast time of a request in turn: interactive rows go before it, and machines are shared.
  [[nodiscard]] double delay_of(dispatch::VariantId variant, TimeNs now) const;
  void learn_delay(const Call& call, TimeNs now);
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
  void fail(Call& call, Fault fault, std::uint32_t row, TimeNs now, Effects& effects);
  void withdraw(Row& row, TimeNs now, Effects& effects);
  // Takes the row out of waiting or running; the caller ends it. False: its answer is in hand, and the holder ends it.
  bool leaves(Row& row, TimeNs now, Effects& effects);
  bool take_back(UpstreamCall::Part& part, TimeNs now, Effects& effects);
  void end(Row& row, TimeNs now, Effects& effects);
  dispatch::Admitted arrive(Row& row, TimeNs deadline, TimeNs now, Effects& effects);
  [[nodiscard]] Fault refusal(const Row& row, const dispatch::Admitted& admitted, TimeNs now);
  void check_fit(TimeNs now, Effects& effects);
  void check_deadlines(TimeNs now, Effects& effects);
  UpstreamCall::Part*& running(dispatch::RequestHandle handle);
  // The books of the model that the client asked for, and of the model that answers now.
  [[nodiscard]] Books& books(const Call& call) const { return *books_[call.model->variant]; }
  [[nodiscard]] Books& books(const Row& row) const { return *books_[row.model().variant]; }

  // ---- cascades (cascades.cc) ----
  void begin(Row& row);
  [[nodiscard]] flow::StageSet present(const Row& row) const;
  // A stage has answered: returns true if the row goes on to another one.
  bool goes_on(Row& row, TimeNs now, Effects& effects);
  // Sends the row to a stage, or if time is short, with fewer words or to an earlier stage. Returns false if none has
  // time; the row is then unchanged.
  bool goes_to(Row& row, std::int32_t to, TimeNs now, Effects& effects);
  bool enter(Row& row, std::int32_t stage, TimeNs now, Effects& effects);
  // Returns whether the row has an answer to settle for, with this reason; the caller ends the row.
  bool settles_for(Row& row, flow::Reason reason, TimeNs now);
  [[nodiscard]] static bool may_settle(const Row& row, flow::Reason reason);
  void find_ways(TimeNs grace, TimeNs now, Effects& effects);
  void end_late(TimeNs now, Effects& effects);
  void set_prices(TimeNs now);

  // ---- pipelines (flows.cc) ----
  std::shared_ptr<FlowState> flow_of(const std::shared_ptr<const ModelSpec>& model, TimeNs now);
  void begin_flow(Call& call, TimeNs now, Effects& effects);
  void begin_roots(Row& row, flow::pipeline::RootArrival wished, TimeNs now, Effects& effects);
  void pump(TimeNs now, Effects& effects);
  void take(FlowState& state, const flow::pipeline::Step& step, TimeNs now, Effects& effects);
  void join_rows(FlowRoot& root, const flow::pipeline::Step& step, TimeNs now);
  void enter_stage(FlowRoot& root, const flow::pipeline::Step& step, TimeNs now, Effects& effects);
  void visit_ended(VisitCall& visit, TimeNs now, Effects& effects);
  static void falls_back(FlowRow& row, const FlowSource& from);
  [[nodiscard]] bool others_fit(const VisitCall& visit) const;
  void root_ended(FlowRoot& root, const flow::pipeline::Step& step, TimeNs now, Effects& effects);
  void took_worker(const VisitCall& visit, const Row& row);
  void leave_flow(Row& row, TimeNs now);
  void look_at_flows(TimeNs now);

  const v1::GatewayConfig& config_;
  dispatch::Scheduler& scheduler_;
  Fleet& fleet_;
  const BooksByVariant& books_;
  UpstreamListener& listener_;
  WaitingRows waiting_;
  std::vector<UpstreamCall::Part*> running_;       // by the scheduler's handle: rows that hold a slot at a worker
  std::unordered_set<UpstreamCall*> left_behind_;  // at instances that were ejected
  std::uint32_t at_workers_ = 0;
  std::vector<Row*> batch_;            // being started
  std::vector<std::int32_t> lengths_;  // of the rows being weighed
  struct Delay {
    double times;
    TimeNs at;
  };
  std::vector<Delay> delays_;                // by variant
  TimeNs next_deadline_ = dispatch::kNever;  // of a running row; may be early, never late
  // State of cascades.
  Scratch scratch_;
  std::vector<Row*> astray_;    // rows whose stage has gone
  std::vector<Row*> late_;      // rows at workers that have an answer and no time for another
  std::uint64_t journeys_ = 0;  // rows so far
  Audits audits_;
  FlowBooks flow_books_;
  std::array<flow::Price, dispatch::kVariants> prices_;  // by variant
  TimeNs next_look_ = 0;                                 // at the prices
  // State of pipelines.
  std::array<std::shared_ptr<FlowState>, dispatch::kVariants> flows_;  // in force, by the pipeline's variant
  std::vector<std::shared_ptr<FlowState>> flow_states_;                // in force, or with roots under way
  std::deque<VisitCall*> ended_visits_;                                // not reported to the pipelines yet
  bool pumping_ = false;
  bool some_unfit_ = false;  // at the last look, some waiting row fitted no instance
};

}  // namespace arlo::gateway
