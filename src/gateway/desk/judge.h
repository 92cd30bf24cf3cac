// What a stage's answer says: which edges of its pipeline a row takes, and how it goes with the answer before it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "flow/pipeline/pipeline.h"
#include "gateway/desk/flow_call.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

// Tensors lie wherever the message has them: not always where a float may stand.
void floats(std::string_view raw, std::vector<float>& out);
std::vector<float> floats(std::string_view raw);

// The label of the largest of these logits; -1: there is none, or one is no number. `labels`: of an answer; 0: it does
// not matter. `order`: place of each among the client's, which comes first of equal ones; empty: the same.
std::int32_t label_of(std::string_view logits, std::int32_t labels = 0, std::span<const std::uint32_t> order = {});
// Of a row's answers that came of a pipeline, in the order of their ways; empty: one is no classifier's.
std::vector<std::int32_t> labels_of(const FlowRow& row);

// Calibrated probabilities of the labels, and the most likely one; -1: there is no answer to judge by.
struct Said {
  std::int32_t label = -1;
  std::vector<double> q;
};
Said said_of(const FlowSpec::Variant& variant, const RowResponse& answer, std::int32_t length);

// The edges that a row takes whose visit was answered so: numbers in FlowSpec::Stage::edges. None: it ends there.
// `variant`: in its stage. `core`, `visit`: that are asked where the load decides.
std::vector<std::int32_t> edges_of(const FlowSpec::Stage& stage, std::size_t variant, const Said& said,
                                   const flow::RowFacts& row, const flow::pipeline::Pipeline& core,
                                   flow::pipeline::VisitId visit);

// Probabilities of two answers together; empty where they do not go together.
std::vector<double> mixed(std::span<const double> weights, std::span<const double> before, std::span<const double> own);

// The answer says these probabilities from now on: its logits are their logarithms.
void set_probabilities(FlowAnswer& answer, int logits, std::span<const double> q);

}  // namespace arlo::gateway
