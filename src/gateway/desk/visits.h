// The desk's pipelines: starts visits, reports their answers to the pipeline, and carries out its decisions. Not
// synchronised: the router's lock covers it.
#pragma once

#include <arlo/v1/config.pb.h>

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "gateway/desk/admission.h"
#include "gateway/desk/audit.h"
#include "gateway/desk/books.h"
#include "gateway/desk/flow_call.h"

namespace arlo::gateway {

class Desk;

class Visits {
 public:
  Visits(Desk& desk, Admission& admission, const v1::GatewayConfig& config, dispatch::Scheduler& scheduler,
         FlowBooks& books, Audits& audits)
      : desk_(desk), admission_(admission), config_(config), scheduler_(scheduler), books_(books), audits_(audits) {}

  // All rows of the call arrive; pump() then runs the pipeline's steps.
  void begin(Call& call, TimeNs now, Effects& effects);
  // Carries out the pipelines' decisions and reports ended visits to them, until neither remains.
  void pump(TimeNs now, Effects& effects);
  // The visit has ended, which pump() reports.
  void ended(VisitCall& visit);
  // A client's row has ended: its roots that are still under way are abandoned.
  void leave(Row& row, TimeNs now);
  void look(TimeNs now);  // at prices and tenants, now and then
  // The pipeline in force, by its variant; null: it has had no row yet.
  [[nodiscard]] const FlowState* state(dispatch::VariantId pipeline) const { return in_force_.at(pipeline).get(); }

 private:
  std::shared_ptr<FlowState> state_of(const std::shared_ptr<const ModelSpec>& model, TimeNs now);
  void begin_roots(Row& row, flow::pipeline::RootArrival wished, TimeNs now, Effects& effects);
  void take(FlowState& state, const flow::pipeline::Step& step, TimeNs now, Effects& effects);
  void join_rows(FlowRoot& root, const flow::pipeline::Step& step, TimeNs now);
  void enter_stage(FlowRoot& root, const flow::pipeline::Step& step, TimeNs now, Effects& effects);
  void report(VisitCall& visit, TimeNs now, Effects& effects);
  void root_ended(FlowRoot& root, const flow::pipeline::Step& step, TimeNs now, Effects& effects);

  Desk& desk_;
  Admission& admission_;
  const v1::GatewayConfig& config_;
  dispatch::Scheduler& scheduler_;
  FlowBooks& books_;
  Audits& audits_;
  std::uint64_t numbers_ = 0;                                             // of roots so far
  std::array<std::shared_ptr<FlowState>, dispatch::kVariants> in_force_;  // by the pipeline's variant
  std::vector<std::shared_ptr<FlowState>> states_;                        // in force, or with roots under way
  std::deque<VisitCall*> ended_;                                          // not reported to the pipelines yet
  bool pumping_ = false;
};

}  // namespace arlo::gateway
