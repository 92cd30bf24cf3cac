#include "gateway/desk/journey.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "flow/rules/prune.h"
#include "gateway/desk/audit.h"
#include "gateway/desk/flow_call.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {
namespace {

// Collects the token ids with which the row was last sent.
void tokens_of(const Row& row, Scratch& scratch) {
  worded(row).ids(row.index, scratch.ids);
  const auto& tokens = row.journey->tokens;
  if (tokens == nullptr) return;
  for (std::size_t i = 0; i < tokens->size(); ++i) scratch.ids[i] = scratch.ids[(*tokens)[i]];
  scratch.ids.resize(tokens->size());
}

// Keeps only the values of words, out of one per token including padding.
void only_words(const flow::Vocabulary& vocabulary, const std::vector<std::int64_t>& ids, std::vector<float>& values) {
  std::size_t words = 0;
  for (std::size_t i = 0; i < std::min(ids.size(), values.size()); ++i) {
    if (!std::binary_search(vocabulary.special.begin(), vocabulary.special.end(), ids[i])) values[words++] = values[i];
  }
  values.resize(words);
}

// Whether the text may be truncated: truncated texts end after different words in each vocabulary.
bool perhaps_cut(const Row& row, std::size_t wording) {
  const ModelSpec& model = *row.call->model;
  const std::int32_t longest = wording == 0 ? model.longest : model.wordings[wording - 1]->longest;
  return row.call->request.in(wording).lengths()[row.index] >= longest;
}

// Prunes on the way to a stage with another vocabulary: `scratch.kept` holds the row's tokens there. Tokens left out
// before stay out. Returns how many tokens there were to choose from; 0: all of its text goes.
std::size_t reworded(const Row& row, std::int32_t to, Scratch& scratch, std::int32_t under) {
  const auto& journey = *row.journey;
  const auto& cascade = row.cascade();
  const auto& next = cascade.stages[static_cast<std::size_t>(to)];
  const auto& spec = cascade.spec;
  const auto& from = spec.words_of(static_cast<std::size_t>(journey.answered_by));
  if (from.word_start.empty() || spec.words_of(static_cast<std::size_t>(to)).word_start.empty()) return 0;
  if (perhaps_cut(row, journey.wording) || perhaps_cut(row, next.wording)) return 0;
  auto& there = scratch.other_ids;
  row.call->request.in(next.wording).ids(row.index, there);
  flow::Rewording onto{spec.words_of(static_cast<std::size_t>(to)), there};
  std::vector<std::uint32_t> base;
  if (journey.tokens != nullptr) {
    std::vector<std::int64_t> all;
    worded(row).ids(row.index, all);
    if (!flow::reword(from, all, *journey.tokens, onto, base)) return 0;
    for (std::size_t i = 0; i < base.size(); ++i) there[i] = there[base[i]];
    there.resize(base.size());
    onto.ids = there;
  }
  flow::prune(journey.point->rules.prune, from, scratch.ids, scratch.importance, next.levels, scratch.kept, &onto,
              under);
  if (scratch.kept.empty()) {
    scratch.kept = std::move(base);
    return under == 0 ? scratch.kept.size() : 0;
  }
  if (!base.empty()) {
    for (auto& at : scratch.kept) at = base[at];
  }
  return there.size();
}

template <class Value>
void append(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

void Call::partial(std::unique_ptr<PartialAnswer> answer) {
  answer.reset();
  let_go();
}

Row::Row() = default;
Row::~Row() = default;
Row::Row(Row&&) noexcept = default;

const ModelSpec& Row::model() const {
  if (journey == nullptr) return *call->model;
  return *call->model->cascade->stages[static_cast<std::size_t>(journey->stage)].model;
}

const Cascade& Row::cascade() const { return *call->model->cascade; }

TimeNs Row::queued_ns() const {
  if (flow != nullptr) return ended_ns - call->received_ns - executed_ns();
  if (journey == nullptr) return started_ns - call->received_ns;
  TimeNs sum = 0;
  for (const auto& visit : journey->visits) sum += visit.queued_ns;
  return sum;
}

TimeNs Row::executed_ns() const {
  if (flow != nullptr) return flow->executed_ns;
  if (journey == nullptr) return ended_ns - started_ns;
  TimeNs sum = 0;
  for (const auto& visit : journey->visits) sum += visit.executed_ns;
  return sum;
}

void begin_journey(Row& row, std::uint64_t number) {
  const auto& cascade = row.cascade();
  const auto& wishes = row.call->request.wishes();
  row.journey = std::make_unique<Journey>();
  auto& journey = *row.journey;
  auto& facts = journey.facts;
  facts.seed = wishes.seeded ? wishes.seed : cascade.seed;
  facts.row = wishes.seeded ? row.index : number;
  facts.length = row.length;
  facts.least = wishes.least;
  if (wishes.last >= 0) facts.last = static_cast<std::int32_t>(wishes.last);
  if (wishes.point == "first") facts.last = 0;
  const int named = cascade.find_point(wishes.point);
  journey.point = &cascade.points[named < 0 ? cascade.point : static_cast<std::size_t>(named)];
  journey.entered_ns = row.call->received_ns;
  // Rows with client wishes differ from the data on which the cascade was fitted.
  journey.drawn = row.call->kind != Call::Kind::kAudit && wishes.usual() && Audits::drawn(cascade, facts);
  if (!journey.drawn) return;
  journey.sample = std::make_shared<SampledRow>();
  journey.sample->length = row.length;
  journey.sample->share = cascade.shadow_share;
}

flow::Signals signals_of(const Row& row, Scratch& scratch) {
  const auto& cascade = row.cascade();
  const auto& outputs = cascade.outputs;
  const auto length = static_cast<std::size_t>(row.length);
  flow::Signals signals;
  floats(row.parsed.raw(outputs.logits), scratch.logits);
  signals.labels = row.parsed.elements(outputs.logits);
  if (outputs.end_logits >= 0) {
    floats(row.parsed.raw(outputs.end_logits), scratch.end_logits);
    tokens_of(row, scratch);
    const auto& vocabulary = cascade.spec.words_of(static_cast<std::size_t>(row.journey->stage));
    only_words(vocabulary, scratch.ids, scratch.logits);
    only_words(vocabulary, scratch.ids, scratch.end_logits);
    signals.end_logits = scratch.end_logits;
    signals.labels = scratch.logits.size();
  } else if (row.call->model->outputs[static_cast<std::size_t>(outputs.logits)].token_level) {
    scratch.logits.resize(std::min(scratch.logits.size(), length * signals.labels));  // without padding
  }
  signals.logits = scratch.logits;
  if (outputs.confidence >= 0) {
    const auto own = row.parsed.raw(outputs.confidence);
    if (own.size() >= sizeof(float)) std::memcpy(&signals.confidence, own.data(), sizeof(float));
  }
  return signals;
}

void keep_answer(Row& row, const flow::Signals& signals, double confidence, Scratch& scratch) {
  auto& journey = *row.journey;
  journey.kept = std::move(row.response);
  journey.parsed = std::move(row.parsed);
  journey.answered_by = journey.stage;
  journey.confidence = confidence;
  const auto ensemble = journey.point->rules.ensemble;
  if (ensemble == flow::Ensemble::kNone) return;
  const auto& stage = row.cascade().spec.stages[static_cast<std::size_t>(journey.stage)];
  scratch.q.resize(signals.labels);
  const bool finite = ensemble == flow::Ensemble::kRaw
                          ? flow::raw_probabilities(stage.judge, signals.logits, scratch.q)
                          : flow::calibrate(stage.judge, signals.logits, journey.facts.length, scratch.q);
  if (finite) journey.mix.add(stage.weight, scratch.q);
}

std::int32_t length_at(const Row& row, std::int32_t stage) {
  const auto& at = row.cascade().stages[static_cast<std::size_t>(stage)];
  return row.call->request.in(at.wording).lengths()[row.index];
}

std::int32_t last_length(const Row& row) {
  return length_at(row, static_cast<std::int32_t>(row.cascade().stages.size()) - 1);
}

const InferRequest& worded(const Row& row) {
  const auto& request = row.call->request;
  return row.journey == nullptr ? request : request.in(row.journey->wording);
}

void reword(Row& row, std::int32_t stage) {
  auto& journey = *row.journey;
  const std::size_t wording = row.cascade().stages[static_cast<std::size_t>(stage)].wording;
  if (journey.wording == wording) return;
  journey.wording = wording;
  journey.tokens = nullptr;
  journey.pruned = 0;
  row.length = length_at(row, stage);
}

std::int32_t shorten(Row& row, std::int32_t to, Scratch& scratch, std::int32_t under) {
  auto& journey = *row.journey;
  const auto& cascade = row.cascade();
  const auto& next = cascade.stages[static_cast<std::size_t>(to)];
  const auto& spec = journey.point->rules.prune;
  if (!journey.point->prunes || (under > 0 && spec.alpha_max < spec.alpha)) return 0;
  floats(journey.parsed.raw(cascade.outputs.importance), scratch.importance);
  if (scratch.importance.size() < static_cast<std::size_t>(row.length)) return 0;
  scratch.importance.resize(static_cast<std::size_t>(row.length));
  tokens_of(row, scratch);
  const auto& vocabulary = cascade.spec.words_of(static_cast<std::size_t>(journey.answered_by));
  auto whole = static_cast<std::size_t>(row.length);
  if (next.wording == journey.wording) {
    flow::prune(spec, vocabulary, scratch.ids, scratch.importance, next.levels, scratch.kept, nullptr, under);
    if (scratch.kept.empty()) return 0;
    if (journey.tokens != nullptr) {
      for (auto& at : scratch.kept) at = (*journey.tokens)[at];
    }
  } else if (whole = reworded(row, to, scratch, under); whole == 0) {
    return 0;
  }
  row.length = static_cast<std::int32_t>(scratch.kept.size());
  journey.wording = next.wording;
  journey.tokens = std::make_shared<const std::vector<std::uint32_t>>(scratch.kept);
  return static_cast<std::int32_t>(whole) - row.length;
}

RowResponse answer_of(const Call& call, Journey& journey, bool final) {
  const auto& cascade = *call.model->cascade;
  const OutputSet wanted = call.request.outputs();
  RowResponse answer = journey.parsed.only(wanted & ~cascade.made);
  const auto& outputs = cascade.outputs;
  const auto asked = [&](int output) { return output >= 0 && (wanted >> output & 1) != 0; };
  std::vector<double> q;
  std::vector<float> logits;
  const auto& stage = cascade.spec.stages[static_cast<std::size_t>(journey.answered_by)].judge;
  const bool mixed = journey.mix.several();
  const bool ordered = !mixed && !stage.label_order.empty() && asked(outputs.logits);
  if (!mixed && (ordered || asked(outputs.probabilities))) floats(journey.parsed.raw(outputs.logits), logits);
  if (mixed) {
    journey.mix.probabilities(q);
  } else if (asked(outputs.probabilities)) {
    q.resize(static_cast<std::size_t>(cascade.spec.labels));
    if (logits.size() != q.size() || !flow::calibrate(stage, logits, journey.facts.length, q)) {
      std::fill(q.begin(), q.end(), std::nan(""));
    }
  }
  // All bytes are written before views are taken, because growth moves them.
  std::string& made = journey.made;
  append(made, static_cast<std::int32_t>(journey.answered_by));
  append(made, static_cast<float>(journey.confidence));
  append(made, final ? static_cast<std::int32_t>(journey.reason) : -1);
  for (const double p : q) append(made, static_cast<float>(p));
  if (mixed) {
    for (const double p : q) append(made, static_cast<float>(std::log(p)));
  } else if (ordered) {  // in the label order of the cascade, not of the stage
    std::vector<float> places(stage.label_order.size(), std::nanf(""));
    for (std::size_t i = 0; i < std::min(places.size(), logits.size()); ++i) places[stage.label_order[i]] = logits[i];
    for (const float z : places) append(made, z);
  }
  const std::string_view all = made;
  const auto labels = static_cast<std::int64_t>(q.size());
  const std::size_t bytes = q.size() * sizeof(float);
  if (asked(outputs.stage)) answer.set(outputs.stage, {}, all.substr(0, 4));
  if (asked(outputs.sureness)) answer.set(outputs.sureness, {}, all.substr(4, 4));
  if (asked(outputs.reason)) answer.set(outputs.reason, {}, all.substr(8, 4));
  if (asked(outputs.probabilities)) answer.set(outputs.probabilities, {labels}, all.substr(12, bytes));
  if (mixed && asked(outputs.logits)) answer.set(outputs.logits, {labels}, all.substr(12 + bytes, bytes));
  if (ordered) answer.set(outputs.logits, {cascade.spec.labels}, all.substr(12 + bytes));
  return answer;
}

}  // namespace arlo::gateway
