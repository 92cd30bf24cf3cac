#include "gateway/desk/ahead.h"

#include <utility>

#include "gateway/desk/desk.h"

namespace arlo::gateway {

Ahead::Ahead(AheadListener& listener, Row& of, TimeNs now)
    : row(&of), listener_(listener), of_(*of.call), index_(of.index), length_(last_length(of)) {
  lane = of_.lane;
  router = of_.router;
  model = of_.model;
  client = of_.client;
  shadow = ahead = true;
  received_ns = now;
  deadline_ns = of_.deadline_ns - model->cascade->margin;
  of_.holds.fetch_add(1, std::memory_order_relaxed);
}

MaybeFault Ahead::write() {
  RuntimeInfo runtime;
  runtime.dynamic = true;
  const auto& cascade = *model->cascade;
  const std::size_t wording = cascade.stages.back().wording;
  const WorkerRequest::Row one{.request = &of_.request.in(wording),
                               .row = index_,
                               .outputs = cascade.asks(cascade.stages.size() - 1, of_.request.outputs())};
  const WorkerRequest whole({&one, 1}, runtime, length_);
  body.resize(whole.size());
  whole.write(body.data());
  of_.let_go();
  if (auto bad = request.parse(body)) return bad;
  return request.bind(wording == 0 ? *model : *model->wordings[wording - 1], {});
}

// ---- the desk's part ----

void Desk::speculate(Row& row, TimeNs now, Effects& effects) {
  const auto& cascade = row.cascade();
  const auto& journey = *row.journey;
  const auto stages = static_cast<std::int32_t>(cascade.stages.size());
  // Rows of clients with wishes of their own end elsewhere than others, and a mean wants the first stage's answer.
  if (!cascade.speculate || row.call->shadow || !row.call->request.wishes().usual() || journey.stage + 1 >= stages ||
      journey.point->rules.ensemble != flow::Ensemble::kNone || prices_.at(row.call->model->variant).now() > 0) {
    return;
  }
  const auto variant = cascade.stages.back().model->variant;
  auto last = fleet_.last_stage(variant, last_length(row));
  last.busy += static_cast<std::int32_t>(aheads_unsent_);
  if (scheduler_.queued_of(variant) > 0 ||
      !flow::speculates(last, exit_shares_.at(row.call->model->variant).of(journey.facts.length))) {
    return;
  }
  auto* ahead = new Ahead(ahead_listener_, row, now);
  row.journey->ahead = ahead;
  ++aheads_;
  ++aheads_unsent_;
  ++books(*row.call).speculated();
  effects.aheads.push_back(ahead);
}

void Desk::sent(Ahead& ahead) {
  ahead.sent = true;
  --aheads_unsent_;
}

void Desk::let_go_ahead(Row& row, TimeNs now, Effects& effects) {
  Ahead* const ahead = std::exchange(row.journey->ahead, nullptr);
  if (ahead == nullptr) return;
  ahead->row = nullptr;
  if (ahead->over) {
    effects.calls.emplace_back([ahead] { delete ahead; });
    return;
  }
  ahead->cancelled = true;  // where it is not submitted yet
  if (ahead->open_rows > 0) fail(*ahead, {Code::kCancelled, "not needed"}, Call::kNoRow, now, effects);
}

bool Desk::awaits_ahead(Row& row, std::int32_t to, TimeNs now, Effects& effects) {
  auto& journey = *row.journey;
  const Ahead* const ahead = journey.ahead;
  if (ahead == nullptr || to + 1 != static_cast<std::int32_t>(row.cascade().stages.size())) return false;
  if (!ahead->good() && !ahead->runs()) {  // it would be no sooner there
    let_go_ahead(row, now, effects);
    return false;
  }
  const auto variant = row.cascade().stages.back().model->variant;
  const std::int32_t whole = last_length(row);
  books_[variant]->arrived(whole, scheduler_.ideal_level(whole, variant));
  row.state = Row::State::kNew;  // it waits for nothing that the scheduler knows of
  row.handle = dispatch::kNone;
  journey.awaits_ahead = true;
  return true;
}

void Desk::take_from_ahead(Row& row, TimeNs now, Effects& effects) {
  Ahead& ahead = *row.journey->ahead;
  Row& other = ahead.rows.front();
  auto& journey = *row.journey;
  auto& from = *other.journey;
  const auto last = static_cast<std::size_t>(from.stage);
  journey.kept = std::move(from.kept);
  journey.parsed = std::move(from.parsed);
  journey.stage = journey.answered_by = journey.last_visited = from.stage;
  journey.confidence = from.confidence;
  journey.reason = flow::Reason::kFinal;
  journey.visits.at(last) = from.visits.at(last);
  journey.tokens = nullptr;
  journey.pruned = 0;
  journey.wording = row.cascade().stages[last].wording;
  row.length = last_length(row);
  row.level = other.level;
  row.max_length = other.max_length;
  row.demoted = other.demoted;
  row.padded = other.padded;
  row.batch_rows = other.batch_rows;
  auto& counts = books(*row.call);
  ++counts.stage(last).exits.at(static_cast<std::size_t>(flow::Reason::kFinal));
  ++counts.speculated_used();
  const auto logits = journey.parsed.raw(row.cascade().outputs.logits);
  if (journey.sample != nullptr && label_of(row.cascade(), last, logits) >= 0) {
    last_said(*journey.sample, static_cast<std::int32_t>(last), logits);
    into_sample(*row.call->model, std::move(journey.sample));
  }
  let_go_ahead(row, now, effects);
}

void Desk::ahead_ended(Ahead& ahead, TimeNs now, Effects& effects) {
  --aheads_;
  if (!ahead.sent) --aheads_unsent_;
  ahead.over = true;
  if (ahead.row == nullptr) {
    effects.calls.emplace_back([&ahead] { delete &ahead; });
    return;
  }
  Row& row = *ahead.row;
  auto& journey = *row.journey;
  if (journey.awaits_ahead) {
    journey.awaits_ahead = false;
    if (ahead.good()) {
      take_from_ahead(row, now, effects);
      end(row, now, effects);
    } else {
      let_go_ahead(row, now, effects);
      const std::int32_t from = journey.stage;
      if (!enter(row, static_cast<std::int32_t>(row.cascade().stages.size()) - 1, now, effects)) {
        journey.stage = journey.answered_by;
        ++books(*row.call).stage(static_cast<std::size_t>(from)).exits.at(static_cast<std::size_t>(journey.reason));
        end(row, now, effects);
      }
    }
  } else if (ahead.good()) {
    // It waits for an earlier stage, or runs there; where that one's answer has just come, that comes first, and finds
    // this one there.
    if (leaves(row, now, effects)) {
      take_from_ahead(row, now, effects);
      end(row, now, effects);
    }
  } else {
    let_go_ahead(row, now, effects);
  }
  settle(effects, now);
}

}  // namespace arlo::gateway
