// How sure a stage is of its answer. Pure; in double, with the largest logit taken off first.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "flow/cascade/spec.h"

namespace arlo::flow {

// What a stage said of one row.
struct Signals {
  std::span<const float> logits = {};      // [tokens, labels]; of a whole row [1, labels]
  std::size_t labels = 0;                  // > 0
  std::span<const float> end_logits = {};  // [labels]: of the end of a span; `logits` are of its start. Empty: no span
  float confidence = 0;                    // the stage's own, where it is asked for
};

// No logit is a NaN or infinite.
bool finite(const Signals& signals);

// Probabilities that calibrated logits stand for, in the order of the cascade's labels, into `out` ([labels]). False:
// some logit is not finite, or there are not as many as labels, and `out` says nothing. `length`: tokens of the row.
bool calibrate(const StageSpec& stage, std::span<const float> logits, std::int32_t length, std::span<double> out);

// softmax(z) in the order of the cascade's labels; as of calibrate().
bool raw_probabilities(const StageSpec& stage, std::span<const float> logits, std::span<double> out);

// In [0, 1], of probabilities. Not of Score::kOutput.
double score_of(Score score, std::span<const double> q);

// Linear between points, of which there is one at least, ascending by their first number; flat outside.
double along(const std::vector<std::pair<double, double>>& curve, double x);

// In [0, 1]; 0 where a logit is not finite. `scratch` is for reuse.
double confidence(const StageSpec& stage, const Signals& signals, std::int32_t length, std::vector<double>& scratch);

}  // namespace arlo::flow
