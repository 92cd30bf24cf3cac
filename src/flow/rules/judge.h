// The confidence of a stage in its answer. Pure; in double, with the largest logit subtracted first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace arlo::flow {

// Throws std::invalid_argument with this message unless `good`.
void need(bool good, const std::string& message);

// Numbers of rows up to so many tokens, ascending.
using ByLength = std::vector<std::pair<std::int32_t, double>>;

// The map from logits to calibrated probabilities, that are right as often as they say (Tabi Eq. 2, HybridServe Eq. 1).
struct Calibrator {
  enum class Kind : std::uint8_t {
    kTemperature,  // softmax(z / t)
    kVector,       // softmax(scale_i z_i + bias_i)
    kDirichlet,    // softmax(W log softmax(z) + bias)
    kIsotonic,     // softmax(z / t), and the confidence by the curve
  };
  Kind kind = Kind::kTemperature;
  double t = 1;                                  // > 0
  ByLength by_length;                            // t of shorter rows; longer: t
  std::vector<double> scale;                     // kVector: [labels]; kDirichlet: [labels, labels]
  std::vector<double> bias;                      // [labels]
  std::vector<std::pair<double, double>> curve;  // kIsotonic: confidence before, after; both never falling
};

// One number from the probabilities of a row.
enum class Score : std::uint8_t {
  kMax,      // the largest
  kMargin,   // the largest less the second
  kEntropy,  // 1 - entropy / ln(labels)
  kOutput,   // the stage's own output `confidence`
};

// How probabilities by token combine into one confidence for the row.
enum class Over : std::uint8_t { kMin, kMean, kQ10 };

struct Judge {
  std::vector<std::uint32_t> label_order;  // place of each of the stage's labels among the client's; empty: the same
  Calibrator calibrator;
  Score score = Score::kMax;
  Over over = Over::kMin;
  bool squared = false;  // HybridServe's scale: confidence^2
};

// Throws std::invalid_argument, naming the field, which begins with `name`. `labels`: of an answer; 0: it varies.
void validate(const Judge& judge, std::size_t labels, const std::string& name);

// A stage's answer for one row.
struct Signals {
  std::span<const float> logits = {};      // [tokens, labels]; of a whole row [1, labels]
  std::size_t labels = 0;                  // > 0
  std::span<const float> end_logits = {};  // [labels]: of the end of a span; `logits` are of its start. Empty: no span
  float confidence = 0;                    // the stage's own, where it is asked for
};

// Returns true if no logit is NaN or infinite.
bool finite(const Signals& signals);

// Writes the calibrated probabilities, in the order of the client's labels, to `out` ([labels]). False: some logit is
// not finite, or their number is not that of the labels, and `out` is invalid. `length`: tokens of the row.
bool calibrate(const Judge& judge, std::span<const float> logits, std::int32_t length, std::span<double> out);

// softmax(z) in the order of the client's labels; as of calibrate().
bool raw_probabilities(const Judge& judge, std::span<const float> logits, std::span<double> out);

// In [0, 1], of probabilities. Not of Score::kOutput.
double score_of(Score score, std::span<const double> q);

// Interpolates linearly between points (at least one, ascending by their first number); flat outside.
double along(const std::vector<std::pair<double, double>>& curve, double x);

// In [0, 1]; 0 where a logit is not finite. `scratch` is for reuse.
double confidence(const Judge& judge, const Signals& signals, std::int32_t length, std::vector<double>& scratch);

}  // namespace arlo::flow
