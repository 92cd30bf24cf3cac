// A pipeline as the desk runs it: built from a deployment, checked once, then immutable and shared.
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
  // How a row is cut into pieces; window 0: it goes whole.
  struct Chunks {
    std::int32_t window = 0;
    std::int32_t stride = 0;
  };
  // The source of an input of the next stage.
  struct Take {
    enum class From : std::uint8_t {
      kChild,  // a per-child output
      kSlice,  // an output whose first dimension counts the row's children
      kRow,    // an output of the row, shared by all children
      kOwn,    // an input of the row itself
      kLabel,  // a label of top_k
      kScore,
    };
    From from = From::kRow;
    int index = -1;  // among outputs, or inputs (kOwn), of the tail's variant
  };
  struct Expand {
    enum class Kind : std::uint8_t { kSame, kTensor, kTopK, kSpans, kPrune };
    Kind kind = Kind::kSame;
    std::uint32_t max = 1U << 16;          // per row
    bool text = false;                     // its only input is a text, which the next stage tokenises
    bool counted = false;                  // the tail counts the children
    bool join = false;                     // rows join into one row of the head
    std::vector<std::vector<Take>> takes;  // by variant of the tail, then by input of the head; empty: token ids go on
    std::vector<int> read;  // by variant of the tail: the output that defines the children, or the importance
  };
  // Which words of a row are left out.
  struct Prune {
    flow::PruneSpec spec;
    flow::Vocabulary vocabulary;
    std::vector<std::int32_t> levels;  // maximum lengths of the head's runtimes; empty: its time depends on tokens
  };
  struct Edge {
    std::int32_t core = -1;                 // its index among the edges of `core`, which has no exits; -1: an exit
    flow::Score score = flow::Score::kMax;  // its guard's
    std::vector<double> weights;            // two, to mix the head's answer with the one so far; empty: no mixing
    Chunks chunks;
    Expand expand;
    std::shared_ptr<const Prune> prune;  // for Expand::Kind::kPrune
  };
  struct Variant {
    std::shared_ptr<const ModelSpec> model;
    int logits = -1;              // output that guards judge
    flow::Judge judge;            // how its logits become probabilities
    OutputSet answers = 0;        // the outputs that clients may have
    std::int32_t tokens = 0;      // added, or merged away, by each layer
    std::vector<double> by_kind;  // accuracy by kind of row; empty: all have the same
  };
  struct Stage {
    // The kind of a row, by which the accuracy of variants is measured.
    [[nodiscard]] std::uint32_t kind(std::uint32_t task, std::int32_t length) const;

    std::string name;
    std::vector<Variant> variants;
    std::vector<Edge> edges;
    std::vector<std::int32_t> bins;   // ends of length bins; the last is open above
    std::vector<flow::Guard> guards;  // of the edges
    bool first = false;
    bool judged = false;          // some edge depends on the answer, or it is mixed with another one
    bool ends = false;            // its answers may be a client's
    bool told = false;            // answers of rows that go on are also returned on request
    std::vector<int> outputs;     // indexes of its first variant's answers in the pipeline's ModelSpec::outputs
    std::vector<std::string> of;  // their names in its variants
    std::optional<solve::tokens::TokenCounts> counts;  // set if its variants are chosen per batch
    double shadow = 0;                                 // share of answers with fewer tokens that are audited
    int row = -1;  // the output that says to which row each answer belongs; -1: there is none
  };
  // Indexes of outputs computed here, in ModelSpec::outputs.
  struct Made {
    int answers = -1;   // per row
    int accuracy = -1;  // expected
    int reason = -1;    // 0, or 1 + DropReason of the first drop
    int dropped = -1;   // number of dropped children
    int rerouted = -1;  // visits by another variant than the router's first choice
    int route = -1;     // the models on its ways
    int tokens = -1;    // fewest tokens of the variants that answered it; -1: variants do not differ by tokens
  };

  flow::pipeline::Spec core;
  flow::pipeline::Plan plan;
  std::vector<Stage> stages;
  Chunks chunks;
  bool pool = false;
  std::uint64_t max_bytes = 0;
  double audit = 0;  // share of clients' rows
  struct Tenant {
    std::string name;
    double share = 1;
    bool operator==(const Tenant&) const = default;
  };
  std::vector<Tenant> tenants;  // empty: none
  Made made;
  std::size_t content = 0;  // hash of the whole definition except the plan
  std::size_t plan_content = 0;
};

// Whether a request for one model is also valid for the other.
bool alike(const ModelSpec& a, const ModelSpec& b);

// Checks the cascades and pipelines of a deployment whose models are sound; the fault names the error.
MaybeFault check_flows(const v1::Deployment& deployment);

// Checks a pipeline and builds the model that clients see. Throws std::invalid_argument, which names the field.
std::shared_ptr<const ModelSpec> make_pipeline(const v1::Deployment& deployment, const v1::Pipeline& from,
                                               const FindModel& find, dispatch::VariantId variant);

}  // namespace arlo::gateway
