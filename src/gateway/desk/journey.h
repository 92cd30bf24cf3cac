// A row's way through the stages of a cascade. Under the router's lock until the row has ended, as the row is.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flow/cascade/cascade.h"
#include "gateway/desk/call.h"
#include "gateway/desk/sample.h"
#include "gateway/fleet/cascade.h"

namespace arlo::gateway {

struct Journey {
  struct Visit {
    TimeNs queued_ns = 0;
    TimeNs executed_ns = 0;
  };
  static constexpr std::int32_t kNoStage = -1;

  flow::RowFacts facts;
  const Cascade::Point* point = nullptr;  // of the call's cascade
  std::int32_t stage = 0;                 // that it waits for or runs on, or that was its last
  std::int32_t answered_by = kNoStage;    // whose answer is kept
  std::int32_t last_visited = 0;
  bool escalated = false;                   // it went on from some stage
  std::shared_ptr<const std::string> kept;  // that answer, ModelInferResponse of the worker
  RowResponse parsed;                       // views into `kept`
  double confidence = 0;                    // of that answer
  flow::Reason reason = flow::Reason::kFinal;
  flow::Mix mix;                                             // of an ensemble alone
  std::size_t wording = 0;                                   // that its tokens are of (InferRequest::in)
  std::shared_ptr<const std::vector<std::uint32_t>> tokens;  // places of those that go on; null: all
  std::int32_t pruned = 0;                                   // tokens left out on the way, in all
  TimeNs entered_ns = 0;                                     // the line of its stage
  std::array<Visit, flow::kMaxStages> visits;
  std::string made;                    // bytes of the outputs that are made here
  bool drawn = false;                  // by chance: the last stage shall be heard in any case (audit.h)
  std::shared_ptr<SampledRow> sample;  // of such a row, as long as it may come into the sample

  [[nodiscard]] bool answered() const { return answered_by != kNoStage; }
};

// What a row of a stream has while it goes on, for a client that wants to see it.
struct PartialAnswer {
  std::uint32_t row;
  TimeNs at_ns;
  Journey journey;  // as it was then
};

// Begins the way of a new row of a cascade.
void begin_journey(Row& row, std::uint64_t number);

// The outputs of a row as its client asked for them: of one that has ended, or, while it goes on, those so far, with no
// reason (-1).
RowResponse answer_of(const Call& call, Journey& journey, bool final);

// For reuse: nothing here outlives a decision.
struct Scratch {
  std::vector<float> logits, end_logits, importance;
  std::vector<double> q;
  std::vector<std::int64_t> ids, other_ids;
  std::vector<std::uint32_t> kept;
};

// What a stage said of the row that it has just answered.
flow::Signals signals_of(const Row& row, Scratch& scratch);

// Of a good answer with these signals: kept from now on.
void keep_answer(Row& row, const flow::Signals& signals, double confidence, Scratch& scratch);

// Its tokens, all of them, as that stage counts them.
std::int32_t length_at(const Row& row, std::int32_t stage);
std::int32_t last_length(const Row& row);  // the same of the last stage

// Its request in the tokens that the row has now.
const InferRequest& worded(const Row& row);

// It goes to that stage: where the stage has another vocabulary, with all of its text.
void reword(Row& row, std::int32_t stage);

// Leaves out what does not matter, on the way to the stage `to`: the row is shorter from now on, and in the words of
// that stage. `under`: as flow::prune() has it. How many tokens: 0: it is as it was.
std::int32_t shorten(Row& row, std::int32_t to, Scratch& scratch, std::int32_t under = 0);

}  // namespace arlo::gateway
