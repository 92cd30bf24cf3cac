#include "gateway/desk/cascades.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "flow/rules/prune.h"
#include "gateway/desk/desk.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {
namespace {

// Starts the journey of a new row of a cascade.
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

// Returns the signals of the stage that has just answered the row.
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

// Keeps a good answer with these signals from now on.
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

// Moves the row to that stage, with all of its text if the stage has another vocabulary.
void reword(Row& row, std::int32_t stage) {
  auto& journey = *row.journey;
  const std::size_t wording = row.cascade().stages[static_cast<std::size_t>(stage)].wording;
  if (journey.wording == wording) return;
  journey.wording = wording;
  journey.tokens = nullptr;
  journey.pruned = 0;
  row.length = length_at(row, stage);
}

// Leaves out unimportant words on the way to the stage `to`: the row becomes shorter, in the vocabulary of that stage.
// `under`: as in flow::prune(). Returns the number of tokens; 0: the row is unchanged.
std::int32_t shorten(Row& row, std::int32_t to, Scratch& scratch, std::int32_t under = 0) {
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

}  // namespace

void Cascades::begin(Row& row) {
  begin_journey(row, rows_++);
  const auto& cascade = row.cascade();
  const auto stages = static_cast<std::int32_t>(cascade.stages.size());
  const std::int32_t start = std::min(row.journey->point->rules.start, row.journey->facts.last);
  const std::int32_t first = row.call->request.wishes().point == "last" ? stages - 1 : start;
  std::int32_t stage = flow::entry(present(row), first, stages);
  if (stage < 0) {  // it waits for a stage that will fit it, as far as is known
    stage = first;
    while (stage + 1 < stages && length_at(row, stage) > cascade.stages[static_cast<std::size_t>(stage)].model->longest)
      ++stage;
  }
  row.journey->stage = stage;
  reword(row, stage);
  desk_.count_arrival(row);
}

flow::StageSet Cascades::present(const Row& row) const {
  const auto& stages = row.cascade().stages;
  flow::StageSet set = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::int32_t length = length_at(row, static_cast<std::int32_t>(s));
    if (scheduler_.fits_any(length, stages[s].model->variant)) set |= 1U << s;
  }
  return set;
}

bool Cascades::goes_on(Row& row, TimeNs now, Effects& effects) {
  const auto& cascade = row.cascade();
  auto& journey = *row.journey;
  auto& counts = this->counts(row, journey.stage);
  auto& visit = journey.visits.at(static_cast<std::size_t>(journey.stage));
  visit.queued_ns += row.started_ns - journey.entered_ns;
  visit.executed_ns += now - row.started_ns;
  journey.last_visited = journey.stage;

  const auto signals = signals_of(row, scratch_);
  auto& price = price_of(row);
  const auto decision = flow::decide(cascade.spec, journey.point->rules, journey.stage, signals, journey.facts,
                                     present(row), cascade.auto_price ? price.now() : 0, scratch_.q);
  FlowBooks::visited(counts, decision.confidence, flow::finite(signals));
  const bool early = decision.exit && decision.reason == flow::Reason::kConfident;
  keep_answer(row, signals, decision.confidence, scratch_);
  journey.reason = decision.reason;
  if (row.call->fault.code != Code::kOk) return false;  // it ends unanswered
  if (journey.drawn) audits_.hear(row, signals, early, price.now(), effects);
  if (decision.exit) {
    bump(counts.mutable_exits(), decision.reason);
    return false;
  }
  if (cascade.auto_price) price.wanted(static_cast<std::int32_t>(journey.point->rules.prices.size()) - 1);
  if (goes_to(row, decision.to, now, effects)) {
    bump(counts.mutable_escalations(), journey.stage);
    journey.escalated = true;
    if (row.call->request.wishes().partial) {
      row.call->holds.fetch_add(1, std::memory_order_relaxed);
      effects.partials.emplace_back(row.call, new PartialAnswer{row.index, now, journey});
    }
    return true;
  }
  bump(counts.mutable_exits(), journey.reason);
  return false;
}

bool Cascades::goes_to(Row& row, std::int32_t to, TimeNs now, Effects& effects) {
  auto& journey = *row.journey;
  const auto& stages = row.cascade().stages;
  const std::int32_t length = row.length;
  const auto tokens = journey.tokens;
  const auto wording = journey.wording;
  const std::int32_t before = journey.pruned;
  auto reason = journey.reason;
  bool tried = false;
  const auto back = [&] {
    row.length = length;
    journey.tokens = tokens;
    journey.wording = wording;
    journey.pruned = before;
    journey.stage = journey.answered_by;
  };
  const auto went = [&](std::int32_t stage, std::int32_t pruned) {
    if (!enter(row, stage, now, effects)) return false;
    auto& counts = this->counts(row, stage);
    counts.set_pruned_tokens(counts.pruned_tokens() + static_cast<std::uint64_t>(pruned));
    journey.pruned += pruned;
    return true;
  };
  // Leaves out as many words as the rules say; if time is short, tries ever shorter runtimes, then an earlier stage.
  for (std::int32_t stage = to; stage > journey.answered_by; --stage) {
    if (stage != to && !flow::has(present(row), stage)) continue;
    const auto& levels = stages[static_cast<std::size_t>(stage)].levels;
    std::int32_t pruned = shorten(row, stage, scratch_);
    while (!went(stage, pruned)) {
      const auto level = std::lower_bound(levels.begin(), levels.end(), row.length);
      back();
      if (!tried) {
        tried = true;
        reason = journey.reason;
        price_of(row).short_of_time();
        if (reason == flow::Reason::kStageAbsent) return false;  // leaving out words does not help
      }
      pruned = level == levels.end() ? 0 : shorten(row, stage, scratch_, *level);
      if (pruned == 0) break;
    }
    if (journey.stage == stage) return true;
  }
  journey.reason = reason;
  return false;
}

bool Cascades::enter(Row& row, std::int32_t stage, TimeNs now, Effects& effects) {
  const auto& cascade = row.cascade();
  const Call& call = *row.call;
  auto& journey = *row.journey;
  journey.stage = stage;
  reword(row, stage);
  journey.entered_ns = now;
  row.attempts = 0;
  // If the price follows the load, an answer in time is worth more than a better, late one.
  const TimeNs due = call.received_ns + call.model->slo_ns;
  TimeNs deadline = call.waiting_deadline();
  if (journey.answered()) {
    deadline = call.deadline_ns - cascade.margin;
    if (cascade.auto_price && !call.bulk()) deadline = std::min(deadline, due);
  }
  const auto admitted = desk_.arrive(row, deadline, now, effects);
  if (admitted.handle != dispatch::kNone) {
    desk_.count_arrival(row);
    return true;
  }
  if (admitted.admission == dispatch::Admission::kTooLate) {
    journey.reason = deadline == due && cascade.auto_price ? flow::Reason::kLoad : flow::Reason::kDeadline;
  } else {
    journey.reason = flow::Reason::kStageAbsent;
  }
  return false;
}

bool Cascades::may_settle(const Row& row, flow::Reason reason) {
  if (row.journey == nullptr || !row.journey->answered()) return false;
  if (reason == flow::Reason::kDeadline) return !row.cascade().expire;
  if (reason == flow::Reason::kStageFailed) return !row.cascade().fail;
  return true;
}

bool Cascades::settles_for(Row& row, flow::Reason reason, TimeNs now) {
  if (!may_settle(row, reason)) return false;
  const auto& cascade = row.cascade();
  auto& journey = *row.journey;
  if (reason == flow::Reason::kDeadline && cascade.auto_price && now < row.call->deadline_ns - cascade.margin) {
    reason = flow::Reason::kLoad;
  }
  if (reason == flow::Reason::kDeadline || reason == flow::Reason::kLoad) {
    price_of(row).short_of_time();
  }
  const bool ran = row.state == Row::State::kRunning;
  auto& visit = journey.visits.at(static_cast<std::size_t>(journey.stage));
  visit.queued_ns += (ran ? row.started_ns : now) - journey.entered_ns;
  if (ran) visit.executed_ns += now - row.started_ns;
  journey.last_visited = journey.stage;
  journey.reason = reason;
  bump(counts(row, journey.answered_by).mutable_exits(), reason);
  return true;
}

void Cascades::find_way(Row& row, TimeNs grace, TimeNs now, Effects& effects) {
  auto& journey = *row.journey;
  const auto& cascade = row.cascade();
  const auto there = present(row);
  std::int32_t to = -1;
  if (journey.answered()) {
    const auto decision = flow::decide(cascade.spec, journey.point->rules, journey.answered_by, journey.confidence,
                                       journey.facts, there, 0);
    if (!decision.exit) to = decision.to;
  } else {
    to = flow::entry(there, journey.stage, static_cast<std::int32_t>(cascade.stages.size()));
    if (to < 0 && row.call->request.wishes().point != "last") {
      to = flow::entry(there, 0, static_cast<std::int32_t>(cascade.stages.size()));
    }
  }
  if (row.unfit_since_ns == 0) row.unfit_since_ns = now;
  if (to < 0 && !journey.answered() && now - row.unfit_since_ns < grace) return;
  if (!desk_.pull_back(row, now, effects)) return;
  auto reason = flow::Reason::kStageAbsent;
  if (to >= 0) {
    if (enter(row, to, now, effects)) {
      if (journey.answered()) bump(counts(row, journey.answered_by).mutable_escalations(), to);
      return;
    }
    reason = journey.reason;
  }
  if (settles_for(row, reason, now)) {
    desk_.end(row, now, effects);
  } else {
    desk_.fail(*row.call, fleet_.no_instance(row.length, row.model().variant), row.index, now, effects);
  }
}

void Cascades::look(TimeNs now) {
  if (now < next_look_) return;
  next_look_ = now + flow::Price::kLook;
  for (auto& price : prices_) price.look();
}

}  // namespace arlo::gateway
