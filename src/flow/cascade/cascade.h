// What a row does after a stage has answered: the one decision of cascades, for the gateway, the simulator and, through
// the binding, the offline tool. Pure: no clocks, threads or randomness; `u` of the soft rule is a hash of the row.
//
//   after stage s answers:
//     conf = score(calibrate(logits))                     confidence.h
//     kept = ensemble of the stages run so far            Mix
//     the last stage that is there, or the client's last  exit
//     good enough by the rule of the price                exit
//     else to the next stage, or further ahead (skip), its unimportant words left out (prune.h)
//
// Source: Tabi sections 3 and 4, HybridServe section IV; what they leave open is decided in docs/flows.md.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "flow/cascade/confidence.h"
#include "flow/cascade/spec.h"

namespace arlo::flow {

// Why a row ended where it did.
enum class Reason : std::uint8_t {
  kConfident,    // the rule was content
  kFinal,        // the last stage has answered
  kClientLimit,  // the client wanted no later stage
  kDeadline,     // there was no time for a later stage
  kLoad,         // the price was above 0; at 0 it would have gone on
  kStageAbsent,  // a later stage was wanted, and no worker has it
  kStageFailed,  // a later stage failed it
};
inline constexpr std::size_t kReasons = 7;
std::string_view reason_name(Reason reason);
// Answered by an earlier stage than the rule wanted.
constexpr bool degraded(Reason reason) { return reason >= Reason::kDeadline; }

struct RowFacts {
  std::uint64_t seed = 0;  // with its number: for the soft rule
  std::uint64_t row = 0;
  std::int32_t length = 0;             // tokens, before anything was pruned
  std::int32_t last = kMaxStages - 1;  // the client wants no later stage
  double least = -1;                   // the client's confidence, in place of the thresholds; below 0: it has none
};

// The stages that can take the row now: a bit each.
using StageSet = std::uint32_t;
constexpr bool has(StageSet set, std::int32_t stage) { return ((set >> stage) & 1U) != 0; }

struct Decision {
  bool exit = true;
  Reason reason = Reason::kFinal;
  std::int32_t to = -1;  // the stage that is next
  double confidence = 0;
};

// u in [0, 1) of a row at a stage (docs/flows.md): the same for the same seed on every machine.
double hash01(std::uint64_t seed, std::uint64_t row, std::int32_t stage);

// Tabi Eq. 4.
double escalation_probability(const Rule& rule, double confidence, std::int32_t length);

// `present`: which stages there are for it. `price`: above the last one of `rules`, that counts.
Decision decide(const CascadeSpec& spec, const Rules& rules, std::int32_t stage, const Signals& signals,
                const RowFacts& row, StageSet present, std::int32_t price, std::vector<double>& scratch);
// The same, of a confidence that is known.
Decision decide(const CascadeSpec& spec, const Rules& rules, std::int32_t stage, double confidence, const RowFacts& row,
                StageSet present, std::int32_t price);

// Where a row begins: the first stage from `first` on that is there; -1: none.
std::int32_t entry(StageSet present, std::int32_t first, std::int32_t stages);

// The answers of a row so far, as one (Tabi Eq. 6): sum of w_s p_s / sum of w_s.
class Mix {
 public:
  void add(double weight, std::span<const double> probabilities);
  [[nodiscard]] bool several() const { return stages_ > 1; }
  // [labels]
  void probabilities(std::vector<double>& out) const;

 private:
  std::vector<double> sum_;
  double weights_ = 0;
  int stages_ = 0;
};

}  // namespace arlo::flow
