// Decides where a row goes after a stage has answered: the one decision of cascades, for the gateway, the simulator
// and, through the binding, the offline tool. Pure: no clocks, threads or randomness.
//
//   after stage s answers:
//     conf = score(calibrate(logits))                     rules/judge.h
//     kept = ensemble of the stages run so far            rules/answer.h: Mix
//     the last stage that is there, or the client's last  exit
//     good enough by the rule of the price                exit                                    rules/guard.h
//     else to the next stage, or further ahead (skip), its unimportant words left out             rules/prune.h
//
// Source: Tabi sections 3 and 4, HybridServe section IV; what they leave open is decided in docs/flows.md.
#pragma once

#include <cstdint>
#include <vector>

#include "flow/cascade/spec.h"

namespace arlo::flow {

// The stages that can take the row now: a bit each.
using StageSet = std::uint32_t;
constexpr bool has(StageSet set, std::int32_t stage) { return ((set >> stage) & 1U) != 0; }

struct Decision {
  bool exit = true;
  Reason reason = Reason::kFinal;
  std::int32_t to = -1;  // the stage that is next
  double confidence = 0;
};

// `present`: which stages there are for it. `price`: above the last one of `rules`, that counts.
Decision decide(const CascadeSpec& spec, const Rules& rules, std::int32_t stage, const Signals& signals,
                const RowFacts& row, StageSet present, std::int32_t price, std::vector<double>& scratch);
// The same decision for a given confidence.
Decision decide(const CascadeSpec& spec, const Rules& rules, std::int32_t stage, double confidence, const RowFacts& row,
                StageSet present, std::int32_t price);

// Returns the stage where a row begins: the first available one from `first` on; -1: none.
std::int32_t entry(StageSet present, std::int32_t first, std::int32_t stages);

}  // namespace arlo::flow
