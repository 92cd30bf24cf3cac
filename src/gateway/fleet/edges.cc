#include "gateway/fleet/edges.h"

#include <algorithm>

#include "gateway/fleet/rules.h"

namespace arlo::gateway {
namespace {

using Expand = FlowSpec::Expand;
using Take = FlowSpec::Take;
using Kind = Expand::Kind;

constexpr std::string_view kLabel = "label";
constexpr std::string_view kScore = "score";

// The model that stands for a stage: all of its variants take the same rows, and answer them alike.
const ModelSpec& model_at(const FlowSpec::Stage& stage) { return *stage.variants.front().model; }

std::string name_at_tail(const v1::PipelineEdge& edge, const std::string& input) {
  for (const auto& taken : edge.expand().inputs()) {
    if (taken.input() == input) return taken.from();
  }
  return input;
}

// The number of elements of a row or child, by its dims; -1: unknown. `from`: the first of dims that counts.
std::int64_t elements_of(const std::vector<std::int64_t>& dims, std::size_t from) {
  std::int64_t all = 1;
  for (std::size_t i = from; i < dims.size(); ++i) {
    if (dims[i] < 0) return -1;
    all *= dims[i];
  }
  return all;
}

// Whether an output can feed an input. BYTES with one element can hold anything, and are checked on arrival.
bool suits(const OutputSpec& output, bool slice, const InputSpec& input) {
  const auto elements = elements_of(output.dims, slice ? 1 : 0);
  if (output.item == 0) return elements == 1 || elements == -1;
  if (output.datatype != input.datatype || input.item == 0) return false;
  if (input.ragged() || elements == -1) return true;
  return elements * static_cast<std::int64_t>(output.item) == static_cast<std::int64_t>(input.step());
}

// Finds the source of an input of the head at this model of the tail.
Take source_of(const v1::PipelineEdge& edge, Kind kind, const ModelSpec& tail, const InputSpec& input) {
  const std::string from = name_at_tail(edge, input.name);
  const std::string what = "input '" + input.name + "' ";
  if (kind == Kind::kTopK && (from == kLabel || from == kScore)) {
    const bool label = from == kLabel;
    need(input.datatype == (label ? "INT32" : "FP32") && input.step() == 4 && !input.ragged(),
         what + "is of a label or its score: one INT32 or FP32 a row");
    return {label ? Take::From::kLabel : Take::From::kScore, -1};
  }
  if (const int output = tail.find_output(from); output >= 0) {
    const auto& spec = tail.outputs[static_cast<std::size_t>(output)];
    const bool slice =
        kind == Kind::kTensor && !spec.of_children && !spec.dims.empty() && from == edge.expand().output();
    need(!spec.token_level, what + "cannot be output '" + from + "', which is about tokens");
    need(suits(spec, slice, input), what + "(" + input.datatype + ") cannot be output '" + from + "' (" +
                                        spec.datatype + "), which has another type or size");
    return {spec.of_children ? Take::From::kChild : slice ? Take::From::kSlice : Take::From::kRow, output};
  }
  const int own = tail.of_tensors() ? tail.find_input(from) : -1;
  need(own >= 0, what + "is no output of '" + tail.name + "' and no tensor that it takes: '" + from + "'");
  const auto& spec = tail.inputs[static_cast<std::size_t>(own)];
  need(spec.datatype == input.datatype && spec.dims == input.dims,
       what + "cannot be what '" + tail.name + "' takes as '" + from + "': it has another type or size");
  return {Take::From::kOwn, own};
}

// Finds the output that says what becomes of a row of token ids: labels of tokens for spans, or their importance.
int about_tokens(const ModelSpec& model, const std::string& name, bool labels) {
  const int at = floats_of(model, name, labels ? "several labels for each token" : "for each token");
  const auto& spec = model.outputs[static_cast<std::size_t>(at)];
  need(spec.token_level && (labels ? spec.dims.size() == 1 && spec.dims.front() > 1 : spec.dims.empty()),
       "output '" + name + "' is no FP32 " + (labels ? "of several labels " : "") + "for each token");
  return at;
}

// Finds the output that says how many children a row has; -1: none does.
int counted_by(const v1::PipelineEdge& from, Kind kind, const ModelSpec& model, bool of_children) {
  const auto& name = from.expand().output();
  if (kind == Kind::kTopK) {
    const int at = floats_of(model, name, "scores of labels of each row, which top_k needs");
    need(!model.outputs[static_cast<std::size_t>(at)].token_level, "top_k needs scores of each row, not of tokens");
    return at;
  }
  if (kind != Kind::kTensor || name.empty()) return -1;
  const int at = model.find_output(name);
  const auto good = [](const OutputSpec& spec) { return !spec.token_level && !spec.dims.empty(); };
  need(at >= 0 && !of_children && good(model.outputs[static_cast<std::size_t>(at)]),
       "expand.output '" + name + "' is no output of '" + model.name + "' whose first dimension is the row's children");
  return at;
}

// Token ids go on: whole, in pieces, in spans, or without some words.
void expand_ids(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const ModelSpec& next, Expand& to) {
  const auto& first = model_at(tail);
  const bool spans = to.kind == Kind::kSpans;
  need(to.kind != Kind::kTopK, "top_k leads to a model that takes tensors");
  need(!first.of_tensors() && !next.of_tensors(),
       std::string(spans ? "spans are" : "words are left out") + " of token ids, which both stages must take");
  need(spans || next.vocabulary == first.vocabulary,
       "'" + next.name + "' has another vocabulary than '" + first.name + "'");
  if (!spans && to.kind != Kind::kPrune) return;
  for (const auto& variant : tail.variants) {
    to.read.push_back(about_tokens(*variant.model, spans ? from.expand().output() : from.prune().output(), spans));
  }
}

// A text, or tensors, go on.
void expand_tensors(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const ModelSpec& next, Expand& to) {
  if (to.text) {
    need(next.takes_text(), "'" + next.name + "' takes token ids, and has no tokenizer for text");
    need(!next.text_elsewhere(),
         "'" + next.name + "' has a tokenizer of helper processes, which make ids of clients' texts alone");
  }
  InputSpec text;
  text.name = std::string(kText);
  text.datatype = "BYTES";
  text.item = 0;
  for (const auto& input : next.inputs) {
    need(!to.join || to.text || input.item == 0 || input.ragged(),
         "input '" + input.name +
             "' has one size: rows that join are its steps, so its dims must begin with -1, or it is BYTES");
  }
  for (const auto& variant : tail.variants) {
    auto& takes = to.takes.emplace_back();
    for (const auto& input : to.text ? std::vector{text} : next.inputs) {
      takes.push_back(source_of(from, to.kind, *variant.model, input));
    }
    to.counted =
        std::any_of(takes.begin(), takes.end(), [](const auto& each) { return each.from == Take::From::kChild; });
    to.read.push_back(counted_by(from, to.kind, *variant.model, to.counted));
    need(!to.counted || (to.kind == Kind::kTensor && !to.join),
         "outputs of children need expand.kind = \"tensor\", and no join");
  }
}

Expand expand_of(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const FlowSpec::Stage& head) {
  Expand to;
  if (from.has_expand()) {
    to.kind = named<Kind>(from.expand().kind(),
                          {{"tensor", Kind::kTensor}, {"top_k", Kind::kTopK}, {"spans", Kind::kSpans}}, "expand.kind");
    to.max = from.expand().max();
    need(to.max > 0, "expand.max must be above 0");
  }
  const auto& next = model_at(head);
  const bool tensors = next.of_tensors() || model_at(tail).of_tensors();
  to.join = from.has_join();
  need(!to.join || (!from.has_prune() && !from.has_chunks() && from.expand().output().empty() &&
                    (to.kind == Kind::kSame || to.kind == Kind::kTensor)),
       "rows that join go on as they are: expand on the edges before");
  need(!from.has_prune() || (!from.has_chunks() && !from.has_expand()), "a row is pruned, or expanded, not both");
  if (from.has_prune()) {
    const auto& prune = from.prune();
    need(prune.alpha() > 0 && prune.alpha() <= 1e6 && prune.min_words() <= 1U << 20,
         "prune.alpha must be above 0, and min_words at most 1048576");
    to.kind = Kind::kPrune;
  }
  need(!from.has_chunks() || !tensors, "chunks are of token ids");
  const bool ids = to.kind == Kind::kSpans || to.kind == Kind::kPrune;
  to.text = !ids && !next.of_tensors() && (to.kind == Kind::kTensor || tensors || to.join);
  if (ids || (!next.of_tensors() && !to.text)) {
    expand_ids(from, tail, next, to);
  } else {
    expand_tensors(from, tail, next, to);
  }
  return to;
}

// The answers of both ends are mixed, or the tail's stands for the head's.
void check_mix(const v1::PipelineEdge& edge, const FlowSpec::Stage& tail, const FlowSpec::Stage* head) {
  if (!edge.falls_back() && edge.weights().empty()) return;
  need(head != nullptr && !edge.has_chunks() && !edge.has_expand(),
       "one answer goes with another where the row goes on as one row to a stage");
  if (edge.weights().empty()) return;
  need(edge.weights_size() == 2 && edge.weights(0) >= 0 && edge.weights(1) >= 0 &&
           edge.weights(0) + edge.weights(1) > 0 && edge.weights(0) + edge.weights(1) < 1e9,
       "weights are two numbers of at least 0, of which one is above");
  const auto& a = tail.variants.front();
  const auto& b = head->variants.front();
  need(a.logits >= 0 && b.logits >= 0, "answers are mixed by their logits, which both stages must have");
  const auto& one = a.model->outputs[static_cast<std::size_t>(a.logits)];
  const auto& other = b.model->outputs[static_cast<std::size_t>(b.logits)];
  need(one.dims == other.dims && !one.token_level && !other.token_level && one.dims.size() == 1,
       "answers are mixed that have the same labels, for the row");
}

}  // namespace

FlowSpec::Chunks chunks_of(const v1::Chunks& from) {
  need(from.window() > 2 && from.window() <= 1U << 20 && from.stride() > 0 && from.stride() <= from.window() - 2,
       "chunks need a window above 2 and a stride of 1 to window - 2 tokens");
  return {.window = static_cast<std::int32_t>(from.window()), .stride = static_cast<std::int32_t>(from.stride())};
}

void add_edge(const v1::PipelineEdge& from, FlowSpec::Stage& tail, const FlowSpec::Stage* head, std::int32_t core) {
  within("edge " + tail.name + ">" + (head == nullptr ? "exit" : head->name) + ": ", [&] {
    const auto& guard = tail.guards.emplace_back(guard_of(from.guard(), core));
    auto& edge = tail.edges.emplace_back();
    edge.core = core;
    edge.score = score_of(from.guard().score());
    flow::validate(guard, "guard");
    need(!guard.judges() || tail.variants.front().logits >= 0, "its guard judges logits, which its tail has not");
    need(!guard.follows_load() || guard.gain.size() == tail.variants.size(),
         "a gain for each variant of its tail, with a rule that follows the load");
    need(edge.score != flow::Score::kOutput, "score: 'output' is a stage's own, which those of cascades have");
    check_mix(from, tail, head);
    edge.weights.assign(from.weights().begin(), from.weights().end());
    need(head != nullptr || !from.has_expand(), "an exit makes no rows");
    if (from.has_chunks()) edge.chunks = chunks_of(from.chunks());
    if (head != nullptr) edge.expand = expand_of(from, tail, *head);
    if (edge.expand.kind != Kind::kPrune) return;
    const auto& prune = from.prune();
    edge.prune = std::make_shared<const FlowSpec::Prune>(FlowSpec::Prune{
        prune_of(prune), vocabulary_of(prune.vocabulary()), {prune.levels().begin(), prune.levels().end()}});
  });
}

}  // namespace arlo::gateway
