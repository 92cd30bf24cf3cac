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

#include "flow/rules/answer.h"
#include "flow/rules/guard.h"
#include "flow/rules/judge.h"
#include "flow/rules/prune.h"

namespace arlo::flow {

// ---- a cascade as data: its stages, counted from 0, the cheapest, and the rules for their answers. All of it may
// change without loading a model ----

inline constexpr std::int32_t kMaxStages = 8;
inline constexpr std::int32_t kMaxPrices = 16;

struct StageSpec {
  Judge judge;
  std::uint32_t words = 0;  // its vocabulary, in CascadeSpec::vocabularies; beyond: nothing is known of it
  double weight = 1;        // in the ensemble, Tabi Eq. 6: accuracy on the rows that it runs
};

// The rules of a decision; one set of these is in force for each.
struct Rules {
  // [price][stage but the last]: which rows go on; at price 0 as it was searched, at higher ones less is escalated.
  std::vector<std::vector<Guard>> prices;
  std::int32_t start = 0;  // stage that rows begin at; the last one: it alone answers
  // [stage but the last]: confidences, ascending, that part the rows that go on: below the first they go to the stage
  // furthest ahead, each one above is a stage nearer (HybridServe section IV-C). Empty: always to the next one.
  std::vector<std::vector<double>> skip;
  PruneSpec prune;
  Ensemble ensemble = Ensemble::kNone;
};

struct CascadeSpec {
  std::vector<StageSpec> stages;
  std::int32_t labels = 0;  // of each stage; 0: it varies (answers about tokens)
  std::vector<Vocabulary> vocabularies;

  // Returns a stage's vocabulary; in an unknown one each token is a word.
  [[nodiscard]] const Vocabulary& words_of(std::size_t stage) const {
    static const Vocabulary none;
    const auto at = stages[stage].words;
    return at < vocabularies.size() ? vocabularies[at] : none;
  }
};

// Throws std::invalid_argument, naming the field and its range.
void validate(const CascadeSpec& spec);
void validate(const Rules& rules, const CascadeSpec& spec);

// ---- the decision ----

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
