// The desk's cascades: routes a row between stages, and ends it with an answer. Not synchronised: the router's lock
// covers it.
#pragma once

#include <array>
#include <cstdint>

#include "flow/cascade/price.h"
#include "gateway/desk/audit.h"
#include "gateway/desk/books.h"
#include "gateway/desk/journey.h"
#include "gateway/fleet/fleet.h"

namespace arlo::gateway {

class Desk;

// Buffers for reuse: nothing here outlives a decision.
struct Scratch {
  std::vector<float> logits, end_logits, importance;
  std::vector<double> q;
  std::vector<std::int64_t> ids, other_ids;
  std::vector<std::uint32_t> kept;
};

class Cascades {
 public:
  Cascades(Desk& desk, dispatch::Scheduler& scheduler, const Fleet& fleet, FlowBooks& books, Audits& audits)
      : desk_(desk), scheduler_(scheduler), fleet_(fleet), books_(books), audits_(audits) {}

  void begin(Row& row);
  // A stage has answered: returns true if the row goes on to another one.
  bool goes_on(Row& row, TimeNs now, Effects& effects);
  // Returns whether the row has an answer to settle for, with this reason; the caller ends the row.
  bool settles_for(Row& row, flow::Reason reason, TimeNs now);
  [[nodiscard]] static bool may_settle(const Row& row, flow::Reason reason);
  // Moves a waiting row whose stage has gone to another one; if there is none, it ends with its answer, or without one
  // after `grace`.
  void find_way(Row& row, TimeNs grace, TimeNs now, Effects& effects);
  void look(TimeNs now);  // at the prices, now and then
  [[nodiscard]] std::int32_t price(dispatch::VariantId cascade) const { return prices_.at(cascade).now(); }

 private:
  [[nodiscard]] flow::StageSet present(const Row& row) const;
  // Sends the row to a stage, or if time is short, with fewer words or to an earlier stage. Returns false if none has
  // time; the row is then unchanged.
  bool goes_to(Row& row, std::int32_t to, TimeNs now, Effects& effects);
  // Returns false if the scheduler's forecast leaves no time.
  bool enter(Row& row, std::int32_t stage, TimeNs now, Effects& effects);
  [[nodiscard]] flow::Price& price_of(const Row& row) { return prices_.at(row.call->model->variant); }
  [[nodiscard]] v1::StageStats& counts(const Row& row, std::int32_t stage) {
    return books_.stage(*row.call->model, stage);
  }

  Desk& desk_;
  dispatch::Scheduler& scheduler_;
  const Fleet& fleet_;
  FlowBooks& books_;
  Audits& audits_;
  Scratch scratch_;
  std::uint64_t rows_ = 0;                               // so far
  std::array<flow::Price, dispatch::kVariants> prices_;  // by variant
  TimeNs next_look_ = 0;
};

}  // namespace arlo::gateway
