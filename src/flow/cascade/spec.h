// A cascade as data: its stages and the rules for their answers. All of it may change without loading a model.
//
// Papers: Tabi (EuroSys'23), HybridServe (ICDCS'25). Stages count from 0, the cheapest; there are 2 to 8.
#pragma once

#include <cstdint>
#include <vector>

#include "flow/rules/answer.h"
#include "flow/rules/guard.h"
#include "flow/rules/judge.h"
#include "flow/rules/prune.h"

namespace arlo::flow {

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

}  // namespace arlo::flow
