// A client's row on its way through a pipeline (src/flow/pipeline, whose header has the words and the rules).
//
// A row is one root, or several where it enters in pieces. Each visit of a root is a request of the gateway's own to
// the model of the variant that it got: one row, in the books of that model as any client's. What a row has become is
// kept once, and its visits refer to it: token ids and pieces of them, or views into the client's request and the
// answers of workers, which it holds. Tensors are not copied but into the request of the worker that gets them.
//
// All of it belongs to the router's lock; the request of a VisitCall of token ids is written under it, for its size is
// a few kilobytes. A visit that the pipeline has cancelled is let go of (`id` is kNone): what becomes of it is nobody's
// business.
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

// The answer of a visit that has no children, or whose stage is told of: part of the client's.
struct FlowAnswer {
  std::int32_t stage = 0;
  std::int32_t variant = 0;  // in its stage
  std::int32_t tokens = 0;   // that each of its layers adds, or merges away
  std::vector<std::pair<std::int32_t, std::int32_t>> way;
  std::string route;
  std::shared_ptr<const std::string> body;
  RowResponse parsed;                       // views into `body` and `made`
  std::shared_ptr<const std::string> made;  // what was written here
  bool last = true;                         // the way ends there
};

// A row, and the children of it that go on.
struct FlowSource : std::enable_shared_from_this<FlowSource> {
  // Of an input of the next stage: what each child has, or all alike.
  struct Cells {
    std::shared_ptr<const std::string> body;  // that the views point into
    std::vector<std::string_view> of;
  };
  std::shared_ptr<const std::vector<std::int64_t>> ids;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces;  // [from, to) of the ids; one: whole
  bool framed = false;        // a piece has the first and the last token of the row around it
  std::vector<Cells> inputs;  // of a stage of tensors, or of the texts of one of token ids; empty: token ids
  bool texts = false;         // `inputs` is one, of texts
  std::size_t count = 0;      // children
  std::vector<std::pair<std::int32_t, std::int32_t>> way;  // edges and places among siblings, from the entry
  std::string route;                                       // models that it comes from
  TimeNs executed_ns = 0;                                  // on them
  std::shared_ptr<const FlowAnswer> before;                // counts where no further one comes; null: there is none
  std::vector<double> said;                                // probabilities that the next answer is mixed with
  std::vector<double> weights;                             // of these and its own

  [[nodiscard]] std::size_t tokens(std::size_t piece) const {
    return pieces[piece].second - pieces[piece].first + (framed ? 2 : 0);
  }
  void read(std::size_t piece, std::vector<std::int64_t>& out) const;
  // Becomes these ids, in pieces or whole.
  void of_ids(std::shared_ptr<const std::vector<std::int64_t>> all, const FlowSpec::Chunks& chunks);
  [[nodiscard]] std::string_view cell(std::size_t input, std::size_t child) const {
    const auto& of = inputs[input].of;
    return of[of.size() == 1 ? 0 : child];
  }
  // Tokens, or steps, of a child that goes to this model, as far as the gateway can tell before it enters.
  [[nodiscard]] std::int32_t length(const ModelSpec& model) const;
};

// Of a row of n tokens, the content of each piece; empty: it goes whole.
std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces_of(std::size_t tokens, const FlowSpec::Chunks& chunks);

// A pipeline as it is in force, or was for the roots that are still under way.
struct FlowState {
  FlowState(std::shared_ptr<const ModelSpec> of, dispatch::Scheduler& scheduler);

  // Of a parameter `tenant`; that of rows which name none has the least share. Beyond it: there is no such tenant.
  [[nodiscard]] std::size_t tenant_of(std::string_view name) const;
  // Until when a row may wait that came at `came` and has until `limit`.
  [[nodiscard]] TimeNs within_patience(std::size_t tenant, TimeNs came, TimeNs limit) const;
  [[nodiscard]] TimeNs least() const { return core.tree().stage(0).least; }  // that a row takes

  std::shared_ptr<const ModelSpec> model;
  flow::pipeline::Pipeline core;
  flow::pipeline::BestWay best;
  flow::pipeline::Tenants tenants;  // the flow's, and one of those who name none
  std::vector<VisitCall*> visits;   // by VisitId; of those at the scheduler
  std::size_t plan_content;
};

struct FlowRoot {
  Row* row = nullptr;  // null: it has ended without this
  std::shared_ptr<FlowState> state;
  flow::pipeline::RootId id = flow::pipeline::kNone;
  std::int32_t part = 0;     // of its row
  std::uint64_t number = 0;  // of all rows, for guards that go by chance
  std::uint64_t bytes = 0;
  std::vector<std::shared_ptr<const FlowSource>> sources;
  Fault fault;           // of the last visit that failed
  double accuracy = -1;  // expected, of what answered it, for its task; below 0: as the pipeline says
  bool best = true;      // it went the most accurate way, as far as variants are chosen when visits enter
};

// What a row of a client has, beside its Row.
struct FlowRow {
  std::shared_ptr<FlowState> state;
  std::vector<FlowRoot*> roots;  // not ended
  std::int32_t all = 0;          // roots there were
  std::vector<FlowAnswer> answers;
  double accuracy = 0;     // sum over the roots
  std::int32_t ended = 0;  // roots that ended well
  std::size_t tenant = 0;  // of its state
  bool pressed = false;    // its tenant took more than its share: it could wait less
  bool best = true;        // of all roots
  std::int32_t reason = -1;
  std::int32_t dropped = 0;   // of what it became
  std::int32_t rerouted = 0;  // visits of another variant than the router's first choice
  TimeNs executed_ns = 0;
};

class VisitCall final : public Call {
 public:
  // Of a step that enters a stage. `call`: the client's.
  VisitCall(FlowRoot& root, const FlowSource& source, const flow::pipeline::Step& step, const Call& call, TimeNs now);

  MaybeFault write();
  // It starts as this variant of its stage, another one of the body in whose line it waited.
  // False: there is none of this id.
  bool starts_as(dispatch::VariantId id, const FlowState& in_force);
  void complete() override { delete this; }

  [[nodiscard]] const FlowSpec::Stage& at() const {
    return state->model->flow->stages[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const FlowSpec::Variant& of() const { return at().variants[static_cast<std::size_t>(variant)]; }
  // By which its accuracy is known.
  [[nodiscard]] std::uint32_t kind_of(const Row& row) const { return at().kind(task, row.length); }
  [[nodiscard]] std::vector<std::pair<std::int32_t, std::int32_t>> way() const;
  [[nodiscard]] std::string route() const;

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
  std::uint32_t task = 0;    // of its row, where the model has several
  std::int32_t tokens = 0;   // of its variant
  bool full = false;         // it was refused, for the queue was full
  bool evicted = false;      // what is worth more goes before it
  bool no_instance = false;  // none fits it any more
  bool ended = false;

 private:
  MaybeFault write_text(std::string_view text);
  MaybeFault bind(const std::string& raw);
};

// The call as one; null: it is another's.
inline VisitCall* visit_of(Call& call) {
  return call.kind == Call::Kind::kVisit ? static_cast<VisitCall*>(&call) : nullptr;
}

}  // namespace arlo::gateway
