#include "simulate/journeys.h"

#include <algorithm>
#include <utility>

namespace arlo::simulate {

using flow::Reason;

Journeys::Journeys(Core& core, Cascade cascade) : Rows(core), cascade_(std::move(cascade)) {
  const std::size_t stages = cascade_.variants.size();
  spec_.stages.resize(stages);
  spec_.labels = 1;
  flow::validate(spec_);
  flow::validate(cascade_.rules, spec_);
  need(cascade_.rows > 0, "rows: there are no records");
  need(cascade_.confidence.size() == cascade_.rows * stages, "confidence: must be [rows, stages]");
  need(cascade_.tokens.empty() || cascade_.tokens.size() == cascade_.confidence.size(),
       "tokens: must be [rows, stages]");
  for (const auto variant : cascade_.variants) need(variant < dispatch::kVariants, "variants: out of range");
}

void Journeys::pass(TimeNs at) {
  for (; look_ <= at; look_ += flow::Price::kLook) price_.look();
}

flow::StageSet Journeys::present(const Request& request) const {
  flow::StageSet set = 0;
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(cascade_.variants.size()); ++s) {
    if (c_.scheduler.fits_any(request.whole, variant(s))) set |= 1U << s;
  }
  return set;
}

std::int32_t Journeys::entry(flow::StageSet present) const {
  const auto stages = static_cast<std::int32_t>(cascade_.variants.size());
  const std::int32_t stage = flow::entry(present, cascade_.rules.start, stages);
  return stage < 0 ? flow::entry(present, 0, stages) : stage;
}

flow::Decision Journeys::decide(const Request& request, std::int32_t stage, flow::StageSet present,
                                std::int32_t price) const {
  const flow::RowFacts facts{.seed = cascade_.seed, .row = request.number, .length = request.whole};
  return flow::decide(spec_, cascade_.rules, stage, cascade_.confidence[at(request, stage)], facts, present, price);
}

void Journeys::arrive(Slot slot) {
  Request& request = c_.requests[slot];
  request.stage = static_cast<std::int8_t>(std::max(entry(present(request)), 0));
  if (admit(slot).handle == kNone) end(slot, Outcome::kRejected);
}

dispatch::Admitted Journeys::admit(Slot slot) {
  const Request& request = c_.requests[slot];
  dispatch::Arrival made = arrival(request);
  made.variant = variant(request.stage);
  made.follows = request.answered >= 0;
  if (made.follows && made.deadline != kNever) {
    made.deadline -= cascade_.margin;
    if (cascade_.auto_price && !request.bulk) made.deadline = std::min(made.deadline, made.due);
  }
  return Rows::admit(slot, made);
}

void Journeys::answered(Slot slot) {
  Request& request = c_.requests[slot];
  TimeNs took = latency(request);
  const TimeNs patient = patience(request) == kNever ? kNever : patience(request) - cascade_.margin;
  if (request.answered >= 0 && took > patient) {  // it ended with the answer before this one, at its deadline
    took = patient;
    request.reason = static_cast<std::int8_t>(Reason::kDeadline);
  } else if (goes_on_from(slot)) {
    return;
  }
  conclude(slot, took);
}

bool Journeys::goes_on_from(Slot slot) {
  Request& request = c_.requests[slot];
  const auto there = present(request);
  const auto decision = decide(request, request.stage, there, price());
  request.answered = request.stage;
  request.reason = static_cast<std::int8_t>(decision.reason);
  if (decision.exit) return false;
  price_.wanted(static_cast<std::int32_t>(cascade_.rules.prices.size()) - 1);
  if (enter(slot, decision.to)) return true;
  price_.short_of_time();
  const auto reason = request.reason;
  if (reason == static_cast<std::int8_t>(Reason::kStageAbsent)) return false;
  for (std::int32_t before = decision.to - 1; before > request.answered; --before) {
    if (flow::has(there, before) && enter(slot, before)) return true;
  }
  request.reason = reason;
  return false;
}

bool Journeys::enter(Slot slot, std::int32_t stage) {
  Request& request = c_.requests[slot];
  const Request as_it_was = request;
  const std::int32_t pruned = cascade_.tokens.empty() ? 0 : cascade_.tokens[at(request, stage)];
  request.stage = static_cast<std::int8_t>(stage);
  request.length = pruned > 0 ? std::min(pruned, request.whole) : request.whole;
  request.before += request.executed;
  request.executed = 0;
  request.returning = false;
  request.lost = 0;
  const auto admitted = admit(slot);
  if (admitted.handle != kNone) return true;
  request = as_it_was;
  const bool hurry = admitted.admission == dispatch::Admission::kTooLate;
  const auto late = cascade_.auto_price ? Reason::kLoad : Reason::kDeadline;
  request.reason = static_cast<std::int8_t>(hurry ? late : Reason::kStageAbsent);
  return false;
}

void Journeys::unanswered(Slot slot, Outcome outcome, Reason reason) {
  Request& request = c_.requests[slot];
  if (request.answered < 0) return end(slot, outcome);
  if (reason == Reason::kDeadline) {
    price_.short_of_time();
    if (cascade_.auto_price) reason = Reason::kLoad;
  }
  request.reason = static_cast<std::int8_t>(reason);
  request.begun = c_.now;
  conclude(slot, latency(request));
}

void Journeys::find_ways() {
  for (Slot slot = 0; slot < c_.requests.slots(); ++slot) {
    const Request& request = c_.requests[slot];
    if (!request.present || c_.scheduler.fits_any(request.length, variant(request.stage))) continue;
    const auto there = present(request);
    std::int32_t to = entry(there);
    if (request.answered >= 0) {
      const auto decision = decide(request, request.answered, there, 0);
      to = decision.exit ? -1 : decision.to;
    }
    if (to < 0 && request.answered < 0) continue;
    if (!c_.scheduler.cancel(request.handle, slot, c_.now, c_.actions)) continue;  // it runs, or has just expired
    if (to < 0 || !enter(slot, to)) unanswered(slot, Outcome::kRejected, Reason::kStageAbsent);
  }
}

}  // namespace arlo::simulate
