// Judges a stage's answer: its label, which edges of its pipeline the row takes, and how it mixes with the one before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gateway/desk/flow_call.h"

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

// The outcome of a row after a visit's answer.
struct Judged {
  Said said;
  std::vector<std::int32_t> edges;           // edges it takes; none: it ends there
  std::vector<double> together;              // probabilities over its way so far, if they are mixed
  std::shared_ptr<const FlowAnswer> answer;  // may be the client's answer
};

Judged judge(const VisitCall& visit);

// Whether the answer is mixed with that of the edge's head, or is used if none comes.
bool goes_beside(const FlowState& state, const FlowSpec::Edge& edge);

}  // namespace arlo::gateway
