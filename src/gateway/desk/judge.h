// What a stage's answer says: which edges of its pipeline a row takes, and how it goes with the answer before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/pipeline/pipeline.h"
#include "gateway/desk/flow_call.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

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
