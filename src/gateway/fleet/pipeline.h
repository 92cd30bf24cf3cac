// A pipeline as the desk runs it: made of a deployment, checked once, then immutable and shared.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fault.h"
#include "base/time.h"
#include "dispatch/scheduler.h"
#include "flow/pipeline/spec.h"
#include "flow/rules/guard.h"
#include "flow/rules/judge.h"
#include "flow/rules/prune.h"
#include "gateway/fleet/cascade.h"
#include "rewrite/model.h"
#include "solve/tokens/chooser.h"

namespace arlo::gateway {

struct FlowSpec {
  // Pieces of a row; window 0: it goes whole.
  struct Chunks {
    std::int32_t window = 0;
    std::int32_t stride = 0;
  };
  // Where an input of the next stage comes from.
  struct Take {
    enum class From : std::uint8_t {
      kChild,  // an output of children: each has its own
      kSlice,  // an output whose first dimension is the row's children
      kRow,    // an output of the row: all children have it
      kOwn,    // what the row had as an input itself
      kLabel,  // of top_k
      kScore,
    };
    From from = From::kRow;
    int index = -1;  // of outputs, or of inputs (kOwn), of the tail's variant
  };
  struct Expand {
    enum class Kind : std::uint8_t { kSame, kTensor, kTopK, kSpans, kPrune };
    Kind kind = Kind::kSame;
    std::uint32_t max = 1U << 16;          // children of a row
    bool text = false;                     // its one input is a text, of which the next stage makes token ids
    bool counted = false;                  // children are counted by the tail
    bool join = false;                     // a row goes into one of the head's beside others
    std::vector<std::vector<Take>> takes;  // by variant of the tail, then by input of the head; empty: token ids go on
    std::vector<int> read;  // by variant of the tail: its output that says what children there are, or what matters
  };
  // Words of a row that are left out.
  struct Prune {
    flow::PruneSpec spec;
    flow::Vocabulary vocabulary;
    std::vector<std::int32_t> levels;  // maximum lengths of the head's runtimes; empty: its time goes by tokens
  };
  struct Edge {
    std::int32_t core = -1;                 // its number among the edges of `core`, which has no exits; -1: an exit
    flow::Score score = flow::Score::kMax;  // of its guard
    std::vector<double> weights;            // two: the head's answer is mixed with the one so far; empty: it is not
    Chunks chunks;
    Expand expand;
    std::shared_ptr<const Prune> prune;  // of Expand::Kind::kPrune
  };
  struct Variant {
    std::shared_ptr<const ModelSpec> model;
    int logits = -1;              // output that guards judge
    flow::Judge judge;            // how its logits become probabilities
    OutputSet answers = 0;        // of its outputs, those that clients may have
    std::int32_t tokens = 0;      // a layer adds, or merges away
    std::vector<double> by_kind;  // accuracy of each kind of rows; empty: that of all is the same
  };
  struct Stage {
    // Rows that the accuracy of variants is told apart by.
    [[nodiscard]] std::uint32_t kind(std::uint32_t task, std::int32_t length) const;

    std::string name;
    std::vector<Variant> variants;
    std::vector<Edge> edges;
    std::vector<std::int32_t> bins;   // ends of length bins; the last is open above
    std::vector<flow::Guard> guards;  // of the edges
    bool first = false;
    bool judged = false;          // some edge looks at the answer, or it is mixed with another one
    bool ends = false;            // its answers may be a client's
    bool told = false;            // those of rows that go on, too, on request
    std::vector<int> outputs;     // where the answers of its first variant stand in ModelSpec::outputs of the pipeline
    std::vector<std::string> of;  // by name, as its variants have them
    std::optional<solve::tokens::TokenCounts> counts;  // its variants are chosen for batches
    double shadow = 0;                                 // share of the answers with fewer tokens
    int row = -1;  // output that says which row each answer is of; -1: there is none
  };
  // Outputs that are made here, in ModelSpec::outputs.
  struct Made {
    int answers = -1;   // of each row
    int accuracy = -1;  // expected
    int reason = -1;    // 0, or 1 + DropReason of what was given up first
    int dropped = -1;   // of what it became
    int rerouted = -1;  // visits of another variant than the router's first choice
    int route = -1;     // the models of its ways
    int tokens = -1;    // of the variants that answered it, the fewest; -1: variants do not differ by tokens
  };

  flow::pipeline::Spec core;
  flow::pipeline::Plan plan;
  std::vector<Stage> stages;
  Chunks chunks;
  bool pool = false;
  std::uint64_t max_bytes = 0;
  double audit = 0;  // share of the clients' rows
  struct Tenant {
    std::string name;
    double share = 1;
    bool operator==(const Tenant&) const = default;
  };
  std::vector<Tenant> tenants;  // empty: there are none
  Made made;
  std::size_t content = 0;  // hash of all that it is but the plan
  std::size_t plan_content = 0;
};

// Whether a request for one model is a request for the other.
bool alike(const ModelSpec& a, const ModelSpec& b);

// Checks the cascades and pipelines of a deployment whose models are sound; the fault names what is wrong.
MaybeFault check_flows(const v1::Deployment& deployment);

// The model that clients see. The deployment has been checked.
std::shared_ptr<const ModelSpec> make_pipeline(const v1::Pipeline& from, const FindModel& model,
                                               dispatch::VariantId variant);

}  // namespace arlo::gateway
