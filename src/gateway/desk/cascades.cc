// The desk's cascades: routes a row between stages, and ends it with an answer.
#include <algorithm>
#include <utility>

#include "gateway/desk/desk.h"

namespace arlo::gateway {
void Desk::begin(Row& row) {
  begin_journey(row, journeys_++);
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
  const auto variant = row.model().variant;
  books_[variant]->arrived(row.length, scheduler_.ideal_level(row.length, variant));
}

flow::StageSet Desk::present(const Row& row) const {
  const auto& stages = row.cascade().stages;
  flow::StageSet set = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::int32_t length = length_at(row, static_cast<std::int32_t>(s));
    if (scheduler_.fits_any(length, stages[s].model->variant)) set |= 1U << s;
  }
  return set;
}

bool Desk::goes_on(Row& row, TimeNs now, Effects& effects) {
  const auto& cascade = row.cascade();
  auto& journey = *row.journey;
  auto& counts = flow_books_.stage(*row.call->model, journey.stage);
  auto& visit = journey.visits.at(static_cast<std::size_t>(journey.stage));
  visit.queued_ns += row.started_ns - journey.entered_ns;
  visit.executed_ns += now - row.started_ns;
  journey.last_visited = journey.stage;

  const auto signals = signals_of(row, scratch_);
  auto& price = prices_.at(row.call->model->variant);
  const auto decision = flow::decide(cascade.spec, journey.point->rules, journey.stage, signals, journey.facts,
                                     present(row), cascade.auto_price ? price.now() : 0, scratch_.q);
  counts.visited(decision.confidence, flow::finite(signals));
  const bool early = decision.exit && decision.reason == flow::Reason::kConfident;
  keep_answer(row, signals, decision.confidence, scratch_);
  journey.reason = decision.reason;
  if (row.call->fault.code != Code::kOk) return false;  // it ends unanswered
  if (journey.drawn) audits_.hear(row, signals, early, price.now(), effects);
  if (decision.exit) {
    ++counts.exits.at(static_cast<std::size_t>(decision.reason));
    return false;
  }
  if (cascade.auto_price) price.wanted(static_cast<std::int32_t>(journey.point->rules.prices.size()) - 1);
  if (goes_to(row, decision.to, now, effects)) {
    ++counts.escalations.at(static_cast<std::size_t>(journey.stage));
    journey.escalated = true;
    if (row.call->request.wishes().partial) {
      row.call->holds.fetch_add(1, std::memory_order_relaxed);
      effects.partials.emplace_back(row.call, new PartialAnswer{row.index, now, journey});
    }
    return true;
  }
  ++counts.exits.at(static_cast<std::size_t>(journey.reason));
  return false;
}

bool Desk::goes_to(Row& row, std::int32_t to, TimeNs now, Effects& effects) {
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
    flow_books_.stage(*row.call->model, stage).pruned_tokens += static_cast<std::uint64_t>(pruned);
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
        prices_.at(row.call->model->variant).short_of_time();
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

// Returns false if the scheduler's forecast leaves no time.
bool Desk::enter(Row& row, std::int32_t stage, TimeNs now, Effects& effects) {
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
  const auto variant = row.model().variant;
  const auto admitted = arrive(row, deadline, now, effects);
  if (admitted.handle != dispatch::kNone) {
    books_[variant]->arrived(row.length, scheduler_.ideal_level(row.length, variant));
    return true;
  }
  if (admitted.admission == dispatch::Admission::kTooLate) {
    journey.reason = deadline == due && cascade.auto_price ? flow::Reason::kLoad : flow::Reason::kDeadline;
  } else {
    journey.reason = flow::Reason::kStageAbsent;
  }
  return false;
}

bool Desk::may_settle(const Row& row, flow::Reason reason) {
  if (row.journey == nullptr || !row.journey->answered()) return false;
  if (reason == flow::Reason::kDeadline) return !row.cascade().expire;
  if (reason == flow::Reason::kStageFailed) return !row.cascade().fail;
  return true;
}

bool Desk::settles_for(Row& row, flow::Reason reason, TimeNs now) {
  if (!may_settle(row, reason)) return false;
  const auto& cascade = row.cascade();
  auto& journey = *row.journey;
  if (reason == flow::Reason::kDeadline && cascade.auto_price && now < row.call->deadline_ns - cascade.margin) {
    reason = flow::Reason::kLoad;
  }
  if (reason == flow::Reason::kDeadline || reason == flow::Reason::kLoad) {
    prices_.at(row.call->model->variant).short_of_time();
  }
  const bool ran = row.state == Row::State::kRunning;
  auto& visit = journey.visits.at(static_cast<std::size_t>(journey.stage));
  visit.queued_ns += (ran ? row.started_ns : now) - journey.entered_ns;
  if (ran) visit.executed_ns += now - row.started_ns;
  journey.last_visited = journey.stage;
  journey.reason = reason;
  ++flow_books_.stage(*row.call->model, journey.answered_by).exits.at(static_cast<std::size_t>(reason));
  return true;
}

// Moves rows whose stage has gone to another one; if there is none, rows with an answer end with it.
void Desk::find_ways(TimeNs grace, TimeNs now, Effects& effects) {
  for (Row* row : std::exchange(astray_, {})) {
    auto& journey = *row->journey;
    const auto& cascade = row->cascade();
    const auto there = present(*row);
    std::int32_t to = -1;
    if (journey.answered()) {
      const auto decision = flow::decide(cascade.spec, journey.point->rules, journey.answered_by, journey.confidence,
                                         journey.facts, there, 0);
      if (!decision.exit) to = decision.to;
    } else {
      to = flow::entry(there, journey.stage, static_cast<std::int32_t>(cascade.stages.size()));
      if (to < 0 && row->call->request.wishes().point != "last") {
        to = flow::entry(there, 0, static_cast<std::int32_t>(cascade.stages.size()));
      }
    }
    if (row->unfit_since_ns == 0) row->unfit_since_ns = now;
    if (to < 0 && !journey.answered() && now - row->unfit_since_ns < grace) continue;
    if (!scheduler_.cancel(row->handle, row->tag(), now, effects.actions)) continue;  // started, or expired
    waiting_.remove(*row);
    row->state = Row::State::kNew;
    row->handle = dispatch::kNone;
    row->unfit_since_ns = 0;
    auto reason = flow::Reason::kStageAbsent;
    if (to >= 0) {
      if (enter(*row, to, now, effects)) {
        if (journey.answered()) {
          auto& counts = flow_books_.stage(*row->call->model, journey.answered_by);
          ++counts.escalations.at(static_cast<std::size_t>(to));
        }
        continue;
      }
      reason = journey.reason;
    }
    if (settles_for(*row, reason, now)) {
      end(*row, now, effects);
    } else {
      fail(*row->call, fleet_.no_instance(row->length, row->model().variant), row->index, now, effects);
    }
  }
}

void Desk::end_late(TimeNs now, Effects& effects) {
  for (Row* row : std::exchange(late_, {})) {
    if (row->state != Row::State::kRunning) continue;
    UpstreamCall::Part* const part = running(row->handle);
    if (part == nullptr || part->row() == nullptr) continue;  // its answer has just come
    if (!may_settle(*row, flow::Reason::kDeadline)) {
      if (now < row->call->deadline_ns) {
        next_deadline_ = std::min(next_deadline_, row->call->deadline_ns);
        continue;
      }
      fail(*row->call, {Code::kDeadlineExceeded, "the deadline passed while the request ran"}, Call::kNoRow, now,
           effects);
      continue;
    }
    if (!leaves(*row, now, effects)) continue;  // its answer has come meanwhile
    settles_for(*row, flow::Reason::kDeadline, now);
    end(*row, now, effects);
  }
}

void Desk::set_prices(TimeNs now) {
  if (now < next_look_) return;
  next_look_ = now + flow::Price::kLook;
  for (auto& price : prices_) price.look();
}

}  // namespace arlo::gateway
