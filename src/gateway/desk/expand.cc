#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "flow/rules/prune.h"
#include "gateway/desk/flow_call.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {
namespace {

using Expand = FlowSpec::Expand;
using Take = FlowSpec::Take;

Fault unusable(const std::string& what) {
  return Fault{Code::kInternal, "the answer of a stage cannot go on: " + what};
}

// The labels with the greatest scores, best first, as bytes kept by the source: INT32 numbers, then FP32 scores.
std::shared_ptr<const std::string> best_labels(std::string_view raw, std::size_t most, std::size_t* count) {
  const auto scores = floats(raw);
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  *count = std::min(most, order.size());
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    const bool known = !std::isnan(x);
    return known != !std::isnan(y) ? known : known && x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(*count), order.end(), better);
  auto made = std::make_shared<std::string>(*count * 8, '\0');
  for (std::size_t i = 0; i < *count; ++i) {
    std::memcpy(made->data() + 4 * i, &order[i], 4);
    std::memcpy(made->data() + 4 * (*count + i), &scores[static_cast<std::size_t>(order[i])], 4);
  }
  return made;
}

// Finds runs of tokens whose most likely label is not `O`: by B-X and I-X if the labels have such names, else runs of
// one label. The first and last token, which tokenizers add, are in none.
std::vector<std::pair<std::uint32_t, std::uint32_t>> spans_of(const ModelSpec& model, std::string_view raw,
                                                              std::size_t labels, std::size_t tokens) {
  const auto scores = floats(raw);
  const auto named = std::find(model.labels.begin(), model.labels.end(), "O");
  const auto outside = named == model.labels.end() ? 0 : static_cast<std::size_t>(named - model.labels.begin());
  const auto name = [&](std::size_t label) {
    return label < model.labels.size() ? std::string_view(model.labels[label]) : std::string_view{};
  };
  const auto tagged = [&](std::size_t label, char tag) {
    return name(label).size() > 2 && name(label)[0] == tag && name(label)[1] == '-';
  };
  const auto kind = [&](std::size_t label) {
    return tagged(label, 'B') || tagged(label, 'I') ? name(label).substr(2) : name(label);
  };
  std::vector<std::pair<std::uint32_t, std::uint32_t>> spans;
  std::size_t before = outside;
  for (std::size_t token = 1; token + 1 < tokens && (token + 1) * labels <= scores.size(); ++token) {
    const auto at = scores.begin() + static_cast<std::ptrdiff_t>(token * labels);
    const auto label = static_cast<std::size_t>(std::max_element(at, at + static_cast<std::ptrdiff_t>(labels)) - at);
    const bool same = label == before || (!name(label).empty() && kind(label) == kind(before));
    if (label != outside) {
      if (before == outside || !same || tagged(label, 'B')) {
        spans.emplace_back(static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token));
      }
      spans.back().second = static_cast<std::uint32_t>(token) + 1;
    }
    before = label;
  }
  return spans;
}

// Returns a row's token ids: the original ones, or its current ones if it is a piece or was a text.
std::shared_ptr<const std::vector<std::int64_t>> ids_of(const FlowSource& from, const Row& row, std::uint64_t* bytes) {
  if (from.ids != nullptr && !from.framed) return from.ids;
  auto own = std::make_shared<std::vector<std::int64_t>>();
  row.call->request.ids(row.index, *own);
  *bytes += own->size() * sizeof(std::int64_t);
  return own;
}

// Returns the token ids that go on after pruning.
std::shared_ptr<const std::vector<std::int64_t>> pruned(const FlowSpec::Prune& prune,
                                                        std::shared_ptr<const std::vector<std::int64_t>> ids,
                                                        std::string_view raw, std::uint64_t* bytes) {
  auto importance = floats(raw);
  if (importance.size() < ids->size()) return ids;
  importance.resize(ids->size());
  std::vector<std::uint32_t> kept;
  flow::prune(prune.spec, prune.vocabulary, *ids, importance, prune.levels, kept);
  if (kept.empty()) return ids;
  auto fewer = std::make_shared<std::vector<std::int64_t>>();
  fewer->reserve(kept.size());
  for (const auto at : kept) fewer->push_back((*ids)[at]);
  *bytes += fewer->size() * sizeof(std::int64_t);
  return fewer;
}

}  // namespace

MaybeFault expand(const FlowSpec::Edge& edge, const FlowSpec::Variant& variant, std::size_t number,
                  const FlowSource& from, std::size_t child, const Row& row, FlowSource& to, std::uint64_t* bytes) {
  const auto& expand = edge.expand;
  const auto& answer = row.parsed;
  const int read = number < expand.read.size() ? expand.read[number] : -1;
  if (expand.kind == Expand::Kind::kSpans) {
    to.ids = ids_of(from, row, bytes);
    to.pieces = spans_of(*variant.model, answer.raw(read), answer.elements(read), to.ids->size());
    to.framed = true;
    if (to.pieces.size() > expand.max) to.pieces.resize(expand.max);
    *bytes += to.pieces.size() * sizeof(to.pieces.front());
    to.count = to.pieces.size();
    return {};
  }
  if (expand.kind == Expand::Kind::kPrune) {
    to.of_ids(pruned(*edge.prune, ids_of(from, row, bytes), answer.raw(read), bytes), {});
    return {};
  }
  if (expand.takes.empty()) {
    to.of_ids(ids_of(from, row, bytes), edge.chunks);
    *bytes += to.pieces.size() * sizeof(to.pieces.front());
    return {};
  }
  std::size_t there = 1;  // children in the answer
  std::shared_ptr<const std::string> best;
  if (expand.kind == Expand::Kind::kTopK) {
    best = best_labels(answer.raw(read), expand.max, &there);
    *bytes += best->size();
  }
  const auto& takes = expand.takes[number];
  if (read >= 0 && expand.kind == Expand::Kind::kTensor) there = static_cast<std::size_t>(answer.children(read));
  for (const auto& take : takes) {
    if (take.from == Take::From::kChild) there = static_cast<std::size_t>(answer.children(take.index));
  }
  to.count = std::min<std::size_t>(there, expand.max);
  for (const auto& take : takes) {
    auto& cells = to.inputs.emplace_back();
    switch (take.from) {
      case Take::From::kOwn:
        cells = {from.inputs[static_cast<std::size_t>(take.index)].body,
                 {from.cell(static_cast<std::size_t>(take.index), child)}};
        break;
      case Take::From::kLabel:
      case Take::From::kScore: {
        cells.body = best;
        const std::string_view all(*best);
        const std::size_t first = take.from == Take::From::kLabel ? 0 : to.count;
        for (std::size_t i = 0; i < to.count; ++i) cells.of.push_back(all.substr(4 * (first + i), 4));
        break;
      }
      default: {
        const bool each = take.from != Take::From::kRow;
        const auto want = each ? there : 1;
        const auto elements = answer.elements(take.index);
        const bool varying = variant.model->outputs[static_cast<std::size_t>(take.index)].item == 0;
        if (varying && elements != (take.from == Take::From::kChild ? 1 : want)) {
          return unusable("output '" + variant.model->outputs[static_cast<std::size_t>(take.index)].name +
                          "' has not one element for each row");
        }
        cells.body = row.response;
        answer.cut(take.index, want, cells.of);
        if (cells.of.size() != want) return unusable("an output is shorter than its shape says");
        if (each && cells.of.size() > to.count) cells.of.resize(to.count);
        *bytes += answer.raw(take.index).size();  // the whole output is kept, including children beyond `max`
      }
    }
    *bytes += cells.of.size() * sizeof(std::string_view);
  }
  to.texts = expand.text;
  return {};
}

MaybeFault join(const std::vector<const FlowSource*>& parts, const ModelSpec& model, FlowSource& to,
                std::uint64_t* bytes) {
  to.count = 1;
  to.texts = parts.front()->texts;
  for (const auto* part : parts) {  // adjacent steps belong to one part
    std::int64_t known = -1;
    for (std::size_t i = 0; i < part->inputs.size() && !to.texts; ++i) {
      if (model.inputs[i].item == 0) continue;
      const auto size = part->cell(i, 0).size();
      const auto steps = static_cast<std::int64_t>(size / model.inputs[i].step());
      if (size % model.inputs[i].step() != 0 || (known >= 0 && steps != known)) {
        return unusable("a row that joins has no whole number of steps of '" + model.inputs[i].name +
                        "', or not as many as of the inputs before");
      }
      known = steps;
    }
  }
  if (parts.size() == 1) {
    to.inputs = parts.front()->inputs;
    return {};
  }
  for (std::size_t i = 0; i < parts.front()->inputs.size(); ++i) {
    const bool steps = !to.texts && model.inputs[i].item != 0;
    auto all = std::make_shared<std::string>();
    for (const auto* part : parts) {
      if (!steps && part != parts.front()) *all += '\n';
      *all += part->cell(i, 0);
    }
    *bytes += all->size();
    auto& cells = to.inputs.emplace_back();
    cells.of.push_back(*all);
    cells.body = std::move(all);
  }
  return {};
}

void enter_with(const Call& call, std::size_t row, FlowSource& to, std::uint64_t* bytes) {
  if (!call.model->of_tensors()) {
    auto ids = std::make_shared<std::vector<std::int64_t>>();
    call.request.ids(row, *ids);
    *bytes = ids->size() * sizeof(std::int64_t);
    to.of_ids(std::move(ids), call.model->flow->chunks);
    return;
  }
  for (std::size_t i = 0; i < call.model->inputs.size(); ++i) {
    to.inputs.push_back({call.shared, {call.request.cell(row, i)}});
    *bytes += call.request.cell(row, i).size();
  }
  to.count = 1;
}

}  // namespace arlo::gateway
