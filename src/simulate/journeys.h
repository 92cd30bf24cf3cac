// The rows of a simulated cascade: their answers at each stage, and where they go next.
#pragma once

#include <cstdint>

#include "flow/cascade/cascade.h"
#include "flow/cascade/price.h"
#include "simulate/rows.h"

namespace arlo::simulate {

class Journeys final : public Rows {
 public:
  // Throws std::invalid_argument, naming the field.
  Journeys(Core& core, Cascade cascade);

  [[nodiscard]] bool goes_on() const override { return true; }
  void pass(TimeNs at) override;
  void arrive(Slot slot) override;
  void answered(Slot slot) override;
  // With the answer that it has, or none.
  void unanswered(Slot slot, Outcome outcome, flow::Reason reason) override;
  // Moves rows whose stage has gone to another one, or ends them with the answers they have.
  void find_ways() override;

  // In force: 0 where it does not follow the load.
  [[nodiscard]] std::int32_t price() const { return cascade_.auto_price ? price_.now() : 0; }

 private:
  [[nodiscard]] dispatch::VariantId variant(std::int32_t stage) const {
    return cascade_.variants[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] std::size_t at(const Request& request, std::int32_t stage) const {
    return (request.number % cascade_.rows) * cascade_.variants.size() + static_cast<std::size_t>(stage);
  }
  // Returns the stages that have an active instance for a row, and the one where it begins; -1: there is none.
  [[nodiscard]] flow::StageSet present(const Request& request) const;
  [[nodiscard]] std::int32_t entry(flow::StageSet present) const;
  [[nodiscard]] flow::Decision decide(const Request& request, std::int32_t stage, flow::StageSet present,
                                      std::int32_t price) const;
  dispatch::Admitted admit(Slot slot);
  // A stage has answered. Returns true when the row goes on.
  bool goes_on_from(Slot slot);
  bool enter(Slot slot, std::int32_t stage);

  Cascade cascade_;
  flow::CascadeSpec spec_;
  flow::Price price_;
  TimeNs look_ = 0;  // the next one at the price
};

}  // namespace arlo::simulate
