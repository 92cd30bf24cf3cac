// Judges a stage's answer: which edges of its pipeline a row takes, and how the answer mixes with the previous one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "flow/pipeline/pipeline.h"
#include "gateway/desk/flow_call.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

// Copies floats from a tensor, which may be unaligned in the message.
void floats(std::string_view raw, std::vector<float>& out);
std::vector<float> floats(std::string_view raw);

// Returns the label of the largest logit; -1: there is none, or one is NaN. `labels`: number in an answer; 0: any.
// `order`: each label's place in the client's order, which decides between equal ones; empty: the same.
std::int32_t label_of(std::string_view logits, std::int32_t labels = 0, std::span<const std::uint32_t> order = {});
// Returns the labels of a row's pipeline answers, in the order of their ways; empty: one is no classifier's.
std::vector<std::int32_t> labels_of(const FlowRow& row);

// Calibrated probabilities of the labels, and the most likely label; -1: there is no answer to judge.
struct Said {
  std::int32_t label = -1;
  std::vector<double> q;
};
Said said_of(const FlowSpec::Variant& variant, const RowResponse& answer, std::int32_t length);

// Returns the edges taken by a row with this answer, as indexes of FlowSpec::Stage::edges. None: it ends there.
// `variant`: index in its stage. `core`, `visit`: are asked if the load decides.
std::vector<std::int32_t> edges_of(const FlowSpec::Stage& stage, std::size_t variant, const Said& said,
                                   const flow::RowFacts& row, const flow::pipeline::Pipeline& core,
                                   flow::pipeline::VisitId visit);

// Returns the mixed probabilities of two answers; empty if they do not match.
std::vector<double> mixed(std::span<const double> weights, std::span<const double> before, std::span<const double> own);

// Sets the answer's probabilities: its logits become their logarithms.
void set_probabilities(FlowAnswer& answer, int logits, std::span<const double> q);

}  // namespace arlo::gateway
