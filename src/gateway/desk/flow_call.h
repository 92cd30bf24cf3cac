// A client's row on its way through a pipeline (src/flow/pipeline, whose header has the words and the rules).
//
// A row is one root, or several if it enters in pieces. Each visit of a root is a request by the gateway to the model
// of the chosen variant: one row, booked for that model like a client's. A row's products are kept once, and its visits
// refer to them: token ids and pieces of them, or views into the client's request and the workers' answers, which it
// holds. Tensors are copied only into the request to the worker that gets them.
//
// The router's lock protects all of it; the request of a VisitCall of token ids is written under it, as its size is a
// few kilobytes. A visit that the pipeline has cancelled is detached (`id` is kNone), and its outcome is ignored.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/pipeline/pipeline.h"
#include "flow/pipeline/tenants.h"
#include "gateway/desk/call.h"
#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {

class VisitCall;

// The answer of a visit without children, or of a stage that is reported on request: part of the client's answer.
struct FlowAnswer {
  std::int32_t stage = 0;
  std::int32_t variant = 0;  // in its stage
  std::int32_t tokens = 0;   // added, or merged away, by each of its layers
  std::vector<std::pair<std::int32_t, std::int32_t>> way;
  std::string route;
  std::shared_ptr<const std::string> body;
  RowResponse parsed;                       // views into `body` and `made`
  std::shared_ptr<const std::string> made;  // written by the gateway
  bool last = true;                         // the journey ends there
};

// A row, and its children that go on.
struct FlowSource : std::enable_shared_from_this<FlowSource> {
  // Values for an input of the next stage: one per child, or one for all.
  struct Cells {
    std::shared_ptr<const std::string> body;  // bytes under the views
    std::vector<std::string_view> of;
  };
  std::shared_ptr<const std::vector<std::int64_t>> ids;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces;  // [from, to) of the ids; one: whole
  bool framed = false;        // a piece keeps the first and last token of the row around it
  std::vector<Cells> inputs;  // of a stage of tensors, or texts for token ids; empty: token ids
  bool texts = false;         // `inputs` is one, of texts
  std::size_t count = 0;      // children
  std::vector<std::pair<std::int32_t, std::int32_t>> way;  // (edge, place among siblings) pairs from the entry
  std::string route;                                       // models on the way
  TimeNs executed_ns = 0;                                  // execution time on them
  std::shared_ptr<const FlowAnswer> before;                // used if no later answer comes; null: there is none
  std::vector<double> said;                                // probabilities to mix with the next answer
  std::vector<double> weights;                             // of these and of the next answer

  [[nodiscard]] std::size_t tokens(std::size_t piece) const {
    return pieces[piece].second - pieces[piece].first + (framed ? 2 : 0);
  }
  void read(std::size_t piece, std::vector<std::int64_t>& out) const;
  // Sets the source to these ids, in pieces or whole.
  void of_ids(std::shared_ptr<const std::vector<std::int64_t>> all, const FlowSpec::Chunks& chunks);
  [[nodiscard]] std::string_view cell(std::size_t input, std::size_t child) const {
    const auto& of = inputs[input].of;
    return of[of.size() == 1 ? 0 : child];
  }
  // Returns the tokens, or steps, of a child that goes to this model, as far as the gateway can tell before it enters.
  [[nodiscard]] std::int32_t length(const ModelSpec& model) const;
};

// Returns the content of each piece of a row of n tokens; empty: it goes whole.
std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces_of(std::size_t tokens, const FlowSpec::Chunks& chunks);

// A pipeline in force, or one replaced while its roots are still under way.
struct FlowState {
  FlowState(std::shared_ptr<const ModelSpec> of, dispatch::Scheduler& scheduler);

  // The tenant named by the parameter `tenant`; unnamed rows have the least share. Past the end: no such tenant.
  [[nodiscard]] std::size_t tenant_of(std::string_view name) const;
  // Returns the time until which a row that arrived at `came` with limit `limit` may wait.
  [[nodiscard]] TimeNs within_patience(std::size_t tenant, TimeNs came, TimeNs limit) const;
  [[nodiscard]] TimeNs least() const { return core.tree().stage(0).least; }  // least time of a row

  std::shared_ptr<const ModelSpec> model;
  flow::pipeline::Pipeline core;
  flow::pipeline::BestWay best;
  flow::pipeline::Tenants tenants;  // the flow's, plus one for unnamed rows
  std::vector<VisitCall*> visits;   // by VisitId; of visits at the scheduler
  std::size_t plan_content;
};

struct FlowRoot {
  Row* row = nullptr;  // null: it ended before this root
  std::shared_ptr<FlowState> state;
  flow::pipeline::RootId id = flow::pipeline::kNone;
  std::int32_t part = 0;     // of its row
  std::uint64_t number = 0;  // among all rows, for guards that go by chance
  std::uint64_t bytes = 0;
  std::vector<std::shared_ptr<const FlowSource>> sources;
  Fault fault = {};      // of the last visit that failed
  double accuracy = -1;  // expected, of its answer, for its task; below 0: as the pipeline says
  bool best = true;      // it took the most accurate way, as far as visits choose variants on entry
};

// Pipeline state of a client's row, in addition to its Row.
struct FlowRow {
  std::shared_ptr<FlowState> state;
  std::vector<FlowRoot*> roots = {};  // not ended
  std::int32_t all = 0;               // roots in total
  std::vector<FlowAnswer> answers = {};
  double accuracy = 0;     // sum over the roots
  std::int32_t ended = 0;  // roots that ended well
  std::size_t tenant = 0;  // among its state's tenants
  bool pressed = false;    // its tenant exceeded its share, so its wait was cut
  bool best = true;        // of all roots
  std::int32_t reason = -1;
  std::int32_t dropped = 0;   // children that were dropped
  std::int32_t rerouted = 0;  // visits of another variant than the router's first choice
  TimeNs executed_ns = 0;
};

class VisitCall final : public Call {
 public:
  // For a step that enters a stage. `call`: the client's.
  VisitCall(FlowRoot& root, const FlowSource& source, const flow::pipeline::Step& step, const Call& call, TimeNs now);

  MaybeFault write();
  // The visit starts as this variant of its stage, another one of the body in whose line it waited. Returns false if no
  // variant has this id.
  bool starts_as(dispatch::VariantId id, const FlowState& in_force);
  void complete() override { delete this; }

  [[nodiscard]] const FlowSpec::Stage& at() const {
    return state->model->flow->stages[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const FlowSpec::Variant& of() const { return at().variants[static_cast<std::size_t>(variant)]; }
  // The kind of row by which accuracy is known.
  [[nodiscard]] std::uint32_t kind_of(const Row& row) const { return at().kind(task, row.length); }
  [[nodiscard]] std::vector<std::pair<std::int32_t, std::int32_t>> way() const;
  [[nodiscard]] std::string route() const;
  // Whether some variant of its stage has an instance that fits it.
  [[nodiscard]] bool others_fit(const dispatch::Scheduler& scheduler) const;

  std::shared_ptr<FlowState> state;
  FlowRoot* root;  // while it has an id
  std::shared_ptr<const FlowSource> source;
  flow::pipeline::VisitId id;  // kNone: it was cancelled
  std::int32_t stage;
  std::int32_t variant = 0;  // in its stage
  std::int32_t edge;
  std::int32_t index;
  bool follows;
  TimeNs due;
  double utility;            // of an answer
  std::uint32_t task = 0;    // of its row, if the model has several
  std::int32_t tokens = 0;   // of its variant
  bool full = false;         // refused because the queue was full
  bool evicted = false;      // rows worth more go first
  bool no_instance = false;  // no instance fits it any more
  bool ended = false;
};

// Returns the call as a visit; null: it is another kind.
inline VisitCall* visit_of(Call& call) {
  return call.kind == Call::Kind::kVisit ? static_cast<VisitCall*>(&call) : nullptr;
}

// ---- expand.cc: a row becomes children on an edge, pieces of its token ids or slices of its stage's answer: views
// into the worker's answer and the client's request, which the source keeps; nothing is copied ----

// `from`, `child`: the row before. `row`: the row with its answer, by this variant. `to`: receives the children,
// possibly none (count 0). Returns the number of bytes to keep, without those already kept elsewhere. A fault: the
// answer does not suit the edge.
MaybeFault expand(const FlowSpec::Edge& edge, const FlowSpec::Variant& variant, std::size_t number,
                  const FlowSource& from, std::size_t child, const Row& row, FlowSource& to, std::uint64_t* bytes);

// `parts`: the joining rows, in output order. `to`: receives the row of `model` that they become: steps of inputs
// concatenated, texts one per line. Returns as expand() does; `bytes` grows by the newly written bytes.
MaybeFault join(const std::vector<const FlowSource*>& parts, const ModelSpec& model, FlowSource& to,
                std::uint64_t* bytes);

// Fills `to` with the client's row as the source of its roots. `call` has the request.
void enter_with(const Call& call, std::size_t row, FlowSource& to, std::uint64_t* bytes);

}  // namespace arlo::gateway
