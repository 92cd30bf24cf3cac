#include "gateway/fleet/edges.h"

#include <algorithm>
#include <stdexcept>

#include "gateway/fleet/rules.h"

namespace arlo::gateway {
namespace {

using Expand = FlowSpec::Expand;
using Take = FlowSpec::Take;

constexpr std::string_view kLabel = "label";
constexpr std::string_view kScore = "score";

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

class Resolver {
 public:
  Resolver(const v1::PipelineEdge& edge, const ModelSpec& tail, const std::string& where, Expand& to)
      : edge_(edge), tail_(tail), where_(where), to_(to) {}

  MaybeFault take(const InputSpec& input, std::vector<Take>& takes) {
    const std::string from = name_at_tail(edge_, input.name);
    const std::string what = where_ + "input '" + input.name + "' ";
    if (to_.kind == Expand::Kind::kTopK && (from == kLabel || from == kScore)) {
      const bool label = from == kLabel;
      if (input.datatype != (label ? "INT32" : "FP32") || input.step() != 4 || input.ragged()) {
        return invalid(what + "is of a label or its score: one INT32 or FP32 a row");
      }
      takes.push_back({label ? Take::From::kLabel : Take::From::kScore, -1});
      return {};
    }
    if (const int output = tail_.find_output(from); output >= 0) {
      const auto& spec = tail_.outputs[static_cast<std::size_t>(output)];
      const bool slice = to_.kind == Expand::Kind::kTensor && !spec.of_children && !spec.dims.empty() &&
                         from == edge_.expand().output();
      if (spec.token_level) return invalid(what + "cannot be output '" + from + "', which is about tokens");
      if (!suits(spec, slice, input)) {
        return invalid(what + "(" + input.datatype + ") cannot be output '" + from + "' (" + spec.datatype +
                       "), which has another type or size");
      }
      takes.push_back({spec.of_children ? Take::From::kChild : slice ? Take::From::kSlice : Take::From::kRow, output});
      return {};
    }
    if (const int own = tail_.find_input(from); own >= 0 && tail_.of_tensors()) {
      const auto& spec = tail_.inputs[static_cast<std::size_t>(own)];
      if (spec.datatype != input.datatype || spec.dims != input.dims) {
        return invalid(what + "cannot be what '" + tail_.name + "' takes as '" + from +
                       "': it has another type or size");
      }
      takes.push_back({Take::From::kOwn, own});
      return {};
    }
    return invalid(what + "is no output of '" + tail_.name + "' and no tensor that it takes: '" + from + "'");
  }

 private:
  const v1::PipelineEdge& edge_;
  const ModelSpec& tail_;
  const std::string& where_;
  Expand& to_;
};

MaybeFault resolve_spans(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const FlowSpec::Stage& head,
                         const std::string& where, Expand& to) {
  for (const auto& variant : tail.variants) {
    const auto& model = *variant.model;
    const int output = model.find_output(from.expand().output());
    if (output < 0 || model.of_tensors() || head.variants.front().model->of_tensors()) {
      return invalid(where + "spans are of token ids, and need expand.output: labels of each token");
    }
    const auto& spec = model.outputs[static_cast<std::size_t>(output)];
    if (!spec.token_level || spec.datatype != "FP32" || spec.dims.size() != 1 || spec.dims.front() < 2) {
      return invalid(where + "output '" + spec.name + "' is no FP32 of several labels for each token");
    }
    to.read.push_back(output);
  }
  return {};
}

MaybeFault resolve_prune(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const FlowSpec::Stage& head,
                         const std::string& where, Expand& to) {
  const auto& prune = from.prune();
  if (!(prune.alpha() > 0) || prune.alpha() > 1e6 || prune.min_words() > 1U << 20) {
    return invalid(where + "prune.alpha must be above 0, and min_words at most 1048576");
  }
  if (from.has_chunks() || from.has_expand()) return invalid(where + "a row is pruned, or expanded, not both");
  for (const auto& variant : tail.variants) {
    const auto& model = *variant.model;
    if (model.of_tensors() || head.variants.front().model->of_tensors() ||
        model.vocabulary != head.variants.front().model->vocabulary) {
      return invalid(where + "words are left out of token ids, where both stages have one vocabulary");
    }
    const int output = model.find_output(prune.output());
    const bool good = output >= 0 && model.outputs[static_cast<std::size_t>(output)].token_level &&
                      model.outputs[static_cast<std::size_t>(output)].datatype == "FP32" &&
                      model.outputs[static_cast<std::size_t>(output)].dims.empty();
    if (!good)
      return invalid(where + "'" + model.name + "' has no output '" + prune.output() + "': FP32 for each token");
    to.read.push_back(output);
  }
  return {};
}

}  // namespace

MaybeFault check_edge(const v1::Pipeline& from, const v1::PipelineEdge& edge, const FindModel& model,
                      const std::string& pipeline) {
  const auto& tail = from.stages(static_cast<int>(edge.from()));
  const auto* head = edge.to() < 0 ? nullptr : &from.stages(edge.to());
  const std::string where = pipeline + "edge " + tail.name() + ">" + (head == nullptr ? "exit" : head->name()) + ": ";
  try {
    const auto guard = guard_of(edge.guard());
    flow::validate(guard, "guard");
    if (guard.judges() && tail.logits().empty()) {
      return invalid(pipeline + "stage '" + tail.name() + "' has no logits for the guards of its edges");
    }
    if (guard.follows_load() && edge.guard().gain_size() != tail.variants_size()) {
      return invalid(where + "a gain for each variant of its tail, with a rule that follows the load");
    }
    if (score_of(edge.guard().score()) == flow::Score::kOutput) {
      return invalid(where + "score: 'output' is a stage's own, which those of cascades have");
    }
  } catch (const std::invalid_argument& error) {
    return invalid(where + error.what());
  }
  const bool makes_one = !edge.has_chunks() && !edge.has_expand();
  if ((edge.falls_back() || !edge.weights().empty()) && (head == nullptr || !makes_one)) {
    return invalid(where + "one answer goes with another where the row goes on as one row to a stage");
  }
  if (edge.weights().empty()) return {};
  const bool good = edge.weights_size() == 2 && edge.weights(0) >= 0 && edge.weights(1) >= 0 &&
                    edge.weights(0) + edge.weights(1) > 0 && edge.weights(0) + edge.weights(1) < 1e9;
  if (!good) return invalid(where + "weights are two numbers of at least 0, of which one is above");
  if (head->logits().empty() || tail.logits().empty()) {
    return invalid(where + "answers are mixed by their logits, which both stages must have");
  }
  const auto output = [&](const v1::PipelineStage& stage) {
    const auto one = model(stage.variants(0).model());
    return one->outputs[static_cast<std::size_t>(one->find_output(stage.logits()))];
  };
  const auto a = output(tail);
  const auto b = output(*head);
  if (a.dims != b.dims || a.token_level || b.token_level || a.dims.size() != 1) {
    return invalid(where + "answers are mixed that have the same labels, for the row");
  }
  return {};
}

MaybeFault resolve(const v1::PipelineEdge& from, const FlowSpec::Stage& tail, const FlowSpec::Stage& head,
                   const std::string& pipeline, FlowSpec::Edge& edge) {
  using Kind = Expand::Kind;
  const std::string where = pipeline + "edge " + tail.name + ">" + head.name + ": ";
  auto& to = edge.expand;
  to = {};
  const auto& kind = from.expand().kind();
  if (from.has_expand()) {
    to.kind = kind == "tensor" ? Kind::kTensor : kind == "top_k" ? Kind::kTopK : Kind::kSpans;
    to.max = from.expand().max();
    if (kind != "tensor" && kind != "top_k" && kind != "spans") {
      return invalid(where + "expand.kind '" + kind + "' is none of tensor, top_k, spans");
    }
    if (to.max == 0) return invalid(where + "expand.max must be above 0");
  }
  to.join = from.has_join();
  if (to.join && (from.has_prune() || from.has_chunks() || to.kind == Kind::kTopK || to.kind == Kind::kSpans ||
                  !from.expand().output().empty())) {
    return invalid(where + "rows that join go on as they are: expand on the edges before");
  }
  if (from.has_prune()) {
    to.kind = Kind::kPrune;
    return resolve_prune(from, tail, head, where, to);
  }
  if (to.kind == Kind::kSpans) return resolve_spans(from, tail, head, where, to);
  const auto& next = *head.variants.front().model;
  const auto& first = *tail.variants.front().model;
  to.text = !next.of_tensors() && (to.kind == Kind::kTensor || first.of_tensors() || to.join);
  if (to.join) {
    const auto fixed = std::find_if(next.inputs.begin(), next.inputs.end(),
                                    [](const auto& input) { return input.item != 0 && !input.ragged(); });
    if (next.of_tensors() && fixed != next.inputs.end()) {
      return invalid(where + "input '" + fixed->name +
                     "' has one size: rows that join are its steps, so its dims must begin with -1, or it is BYTES");
    }
  }
  if (from.has_chunks() && (next.of_tensors() || first.of_tensors())) return invalid(where + "chunks are of token ids");
  if (to.text && !next.takes_text()) {
    return invalid(where + "'" + next.name + "' takes token ids, and has no tokenizer for text");
  }
  if (to.text && next.text_elsewhere()) {
    return invalid(where + "'" + next.name +
                   "' has a tokenizer of helper processes, which make ids of clients' texts alone");
  }
  if (!next.of_tensors() && !to.text) {
    if (to.kind == Kind::kTopK) return invalid(where + "top_k leads to a model that takes tensors");
    if (next.vocabulary != first.vocabulary) {
      return invalid(where + "stage '" + head.name + "' has another vocabulary than '" + tail.name + "'");
    }
    return {};  // the token ids go on
  }
  InputSpec text;
  text.name = std::string(kText);
  text.datatype = "BYTES";
  text.item = 0;
  const std::vector<InputSpec> one{text};
  for (const auto& variant : tail.variants) {
    const auto& model = *variant.model;
    Resolver resolver(from, model, where, to);
    auto& takes = to.takes.emplace_back();
    for (const auto& input : to.text ? one : next.inputs) {
      if (auto fault = resolver.take(input, takes)) return fault;
    }
    const auto of_children =
        std::any_of(takes.begin(), takes.end(), [](const auto& each) { return each.from == Take::From::kChild; });
    int read = -1;
    if (to.kind == Kind::kTopK) {
      read = model.find_output(from.expand().output());
      if (read < 0 || model.outputs[static_cast<std::size_t>(read)].datatype != "FP32" ||
          model.outputs[static_cast<std::size_t>(read)].token_level) {
        return invalid(where + "top_k needs expand.output: scores of labels, FP32, of each row");
      }
    } else if (to.kind == Kind::kTensor && !from.expand().output().empty()) {
      read = model.find_output(from.expand().output());
      if (read < 0 || of_children || model.outputs[static_cast<std::size_t>(read)].token_level ||
          model.outputs[static_cast<std::size_t>(read)].dims.empty()) {
        return invalid(where + "expand.output '" + from.expand().output() + "' is no output of '" + model.name +
                       "' whose first dimension is the row's children");
      }
    }
    if (of_children && (to.kind != Kind::kTensor || to.join)) {
      return invalid(where + "outputs of children need expand.kind = \"tensor\", and no join");
    }
    to.counted = of_children;
    to.read.push_back(read);
  }
  return {};
}

}  // namespace arlo::gateway
