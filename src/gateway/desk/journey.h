// A row's way through the stages of a cascade. Protected like the row: by the router's lock until the row has ended.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flow/cascade/cascade.h"
#include "gateway/desk/call.h"
#include "gateway/fleet/cascade.h"

namespace arlo::gateway {

struct SampledRow;

struct Journey {
  struct Visit {
    TimeNs queued_ns = 0;
    TimeNs executed_ns = 0;
  };
  static constexpr std::int32_t kNoStage = -1;

  flow::RowFacts facts;
  const Cascade::Point* point = nullptr;  // of the call's cascade
  std::int32_t stage = 0;                 // the one that it waits for or runs on, or its last
  std::int32_t answered_by = kNoStage;    // the stage of the kept answer
  std::int32_t last_visited = 0;
  bool escalated = false;                   // it went on from some stage
  std::shared_ptr<const std::string> kept;  // the worker's ModelInferResponse with the kept answer
  RowResponse parsed;                       // views into `kept`
  double confidence = 0;                    // of the kept answer
  flow::Reason reason = flow::Reason::kFinal;
  flow::Mix mix;                                             // ensembles only
  std::size_t wording = 0;                                   // index of its tokens' wording (InferRequest::in)
  std::shared_ptr<const std::vector<std::uint32_t>> tokens;  // indexes of those that go on; null: all
  std::int32_t pruned = 0;                                   // tokens left out in total
  TimeNs entered_ns = 0;                                     // when it entered the line of its stage
  std::array<Visit, flow::kMaxStages> visits;
  std::string made;                    // bytes of the outputs made here
  bool drawn = false;                  // by chance: the last stage is asked in any case (audit.h)
  std::shared_ptr<SampledRow> sample;  // of a drawn row, while it may enter the sample

  [[nodiscard]] bool answered() const { return answered_by != kNoStage; }
};

// The answer so far of a row of a stream, for a client that wants it.
struct PartialAnswer {
  std::uint32_t row;
  TimeNs at_ns;
  Journey journey;  // a snapshot
};

// Returns the outputs that the client asked for: of an ended row, or, while it goes on, the outputs so far, with no
// reason (-1).
RowResponse answer_of(const Call& call, Journey& journey, bool final);

// Returns the number of the row's tokens, unpruned, in that stage's vocabulary.
std::int32_t length_at(const Row& row, std::int32_t stage);
std::int32_t last_length(const Row& row);  // the same for the last stage

// Returns its request in the row's current vocabulary.
const InferRequest& worded(const Row& row);

}  // namespace arlo::gateway
