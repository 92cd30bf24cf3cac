// A cascade as data: what its stages say, and what is made of it. All of it may change without loading a model.
//
// Papers: Tabi (EuroSys'23), HybridServe (ICDCS'25). Stages count from 0, the cheapest; there are 2 to 8.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace arlo::flow {

inline constexpr std::int32_t kMaxStages = 8;
inline constexpr std::int32_t kMaxPrices = 16;

// How the logits of a stage become probabilities that are right as often as they say (Tabi Eq. 2, HybridServe Eq. 1).
struct Calibrator {
  enum class Kind : std::uint8_t {
    kTemperature,  // softmax(z / t)
    kVector,       // softmax(scale_i z_i + bias_i)
    kDirichlet,    // softmax(W log softmax(z) + bias)
    kIsotonic,     // softmax(z / t), and the confidence by the curve
  };
  Kind kind = Kind::kTemperature;
  double t = 1;                                            // > 0
  std::vector<std::pair<std::int32_t, double>> by_length;  // t of rows up to so many tokens, ascending; longer: t
  std::vector<double> scale;                               // kVector: [labels]; kDirichlet: [labels, labels]
  std::vector<double> bias;                                // [labels]
  std::vector<std::pair<double, double>> curve;            // kIsotonic: confidence before, after; both never falling
};

// One number from the probabilities of a row.
enum class Score : std::uint8_t {
  kMax,      // the largest
  kMargin,   // the largest less the second
  kEntropy,  // 1 - entropy / ln(labels)
  kOutput,   // the stage's own output `confidence`
};

// Of an answer with probabilities for each token, what stands for the row.
enum class Over : std::uint8_t { kMin, kMean, kQ10 };

struct StageSpec {
  std::vector<std::uint32_t> label_order;  // place of each of the stage's labels among the cascade's; empty: the same
  Calibrator calibrator;
  Score score = Score::kMax;
  Over over = Over::kMin;
  bool squared = false;     // HybridServe's scale: confidence^2
  std::uint32_t words = 0;  // its vocabulary, in CascadeSpec::vocabularies; beyond: nothing is known of it
  double weight = 1;        // in the ensemble, Tabi Eq. 6: accuracy on the rows that it runs
};

// When a stage's answer is good enough (Tabi Eq. 4, HybridServe's threshold).
struct Rule {
  enum class Kind : std::uint8_t {
    kHard,  // it is at `t` and above
    kSoft,  // at and below c it is not; above, it is not with probability 1 / (1 + exp(k ((con - c) / (1 - c) - 1/2)))
  };
  Kind kind = Kind::kHard;
  std::vector<std::pair<std::int32_t, double>> t;  // of rows up to so many tokens, ascending; the last: of longer ones
  double c = 0;
  double k = 0;
};

// Words that do not matter are left out on the way to the next stage (Tabi Eq. 5, section 4.2).
struct PruneSpec {
  double alpha = 0;       // a token is kept if its importance is above alpha times the mean; 0: nothing is pruned
  bool over_all = false;  // the mean is over special tokens, too
  bool to_level = true;   // only as far as a shorter runtime is reached, and no further
  std::int32_t min_words = 4;
  // Of a row that has no time for its runtime: words up to this alpha may go for a shorter one, and with them at most
  // this share of its importance; below `alpha`: none.
  double alpha_max = 0;
  double most_removed = 0.5;
};

// What a vocabulary says of words.
struct Vocabulary {
  std::vector<std::uint8_t> word_start;  // a bit for each id: it begins a word; ids beyond: they do
  std::vector<std::int64_t> special;     // ascending: ids that are no words
  std::vector<std::int64_t> keep;        // ascending: ids whose words are always kept
};

enum class Ensemble : std::uint8_t {
  kNone,
  kRaw,         // of softmax(z)
  kCalibrated,  // of the calibrated probabilities
};

// What is decided by; one of these is in force for each decision.
struct Rules {
  std::uint64_t version = 0;
  // [price][stage but the last]: at price 0 as it was searched, at higher ones less is escalated.
  std::vector<std::vector<Rule>> prices;
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

  // What a stage's vocabulary says of words; of one that is not known each token is a word.
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
