// The simulated rows of cascades: where they go from stage to stage, and what they end with.
#include "simulate/engine_impl.h"

namespace arlo::simulate {

flow::StageSet Engine::Impl::present(const Request& request) const {
  flow::StageSet set = 0;
  for (std::int32_t s = 0; s < journeys_->stages(); ++s) {
    if (scheduler_.fits_any(request.whole, journeys_->variant(s))) set |= 1U << s;
  }
  return set;
}

bool Engine::Impl::goes_on(Slot slot) {
  Request& request = requests_[slot];
  auto& price = journeys_->price;
  const auto there = present(request);
  const auto decision = journeys_->decide(request, request.stage, there, journeys_->price_now());
  request.answered = request.stage;
  request.reason = static_cast<std::int8_t>(decision.reason);
  const bool to_last = !decision.exit && decision.to + 1 == journeys_->stages();
  const bool early = decision.exit && decision.reason == flow::Reason::kConfident;
  if (early || to_last) journeys_->exit_shares.saw(request.whole, early);
  if (decision.exit) return false;
  if (to_last && request.ahead != kNone) {
    if (scheduler_.state(requests_[request.ahead].handle) == dispatch::RequestState::kStarted) {
      request.awaits = true;
      return true;
    }
    let_go(slot);
  }
  price.wanted(static_cast<std::int32_t>(journeys_->cascade().rules.prices.size()) - 1);
  if (enter(slot, decision.to)) return true;
  price.short_of_time();
  const auto reason = requests_[slot].reason;
  if (reason == static_cast<std::int8_t>(flow::Reason::kStageAbsent)) return false;
  for (std::int32_t before = decision.to - 1; before > requests_[slot].answered; --before) {
    if (flow::has(there, before) && enter(slot, before)) return true;
  }
  requests_[slot].reason = reason;
  return false;
}

bool Engine::Impl::enter(Slot slot, std::int32_t stage) {
  Request& request = requests_[slot];
  const Request as_it_was = request;
  request.stage = static_cast<std::int8_t>(stage);
  request.length = journeys_->tokens(request, stage);
  request.before += request.executed;
  request.executed = 0;
  request.returning = false;
  request.lost = 0;
  const auto admitted = admit(slot);
  if (admitted.handle != kNone) return true;
  request = as_it_was;
  const bool hurry = admitted.admission == dispatch::Admission::kTooLate;
  const auto late = journeys_->cascade().auto_price ? flow::Reason::kLoad : flow::Reason::kDeadline;
  request.reason = static_cast<std::int8_t>(hurry ? late : flow::Reason::kStageAbsent);
  return false;
}

// --- speculation, as in src/gateway/desk/ahead.cc

void Engine::Impl::speculate(Slot slot) {
  const Request& row = requests_[slot];
  const std::int32_t last = journeys_->stages() - 1;
  const auto& cascade = journeys_->cascade();
  if (row.bulk || row.stage >= last || cascade.rules.ensemble != flow::Ensemble::kNone || journeys_->price_now() > 0 ||
      scheduler_.queued_of(journeys_->variant(last)) > 0 ||
      !flow::speculates(fleet_.last_stage(journeys_->variant(last), row.whole), journeys_->exit_shares.of(row.whole))) {
    return;
  }
  const Slot visit = requests_.beside(slot, now_);  // and no reference from before holds
  Request& ahead = requests_[visit];
  ahead.stage = static_cast<std::int8_t>(last);
  ahead.extra = true;
  ahead.of = slot;
  requests_[slot].ahead = visit;
  if (admit(visit).admission != dispatch::Admission::kStarted) return let_go(slot);
  ++journeys_->speculated;
}

void Engine::Impl::let_go(Slot slot) {
  const Slot visit = std::exchange(requests_[slot].ahead, kNone);
  if (visit == kNone) return;
  requests_[visit].of = kNone;
  const auto handle = requests_[visit].handle;
  if (handle == kNone || scheduler_.cancel(handle, visit, now_, actions_)) requests_.give_back(visit);
}

void Engine::Impl::through(Slot slot, bool good) {
  if (!requests_[slot].over) return visited(slot, good);
  requests_.give_back(slot);
}

void Engine::Impl::visited(Slot visit, bool good) {
  const Request ahead = requests_[visit];
  requests_.give_back(visit);
  if (ahead.of == kNone) return;
  const Slot slot = ahead.of;
  Request& row = requests_[slot];
  row.ahead = kNone;
  if (!good) {
    if (std::exchange(row.awaits, false) && !enter(slot, ahead.stage)) {
      if (!settles_for(slot, static_cast<flow::Reason>(row.reason))) end(slot, Outcome::kFailed);
    }
    return;
  }
  TimeNs latency = now_ - row.arrived + options_.overhead;
  if (ended_before(row, latency)) return conclude(slot, latency);
  const bool runs = !row.awaits && !scheduler_.cancel(row.handle, slot, now_, actions_);
  const Request as_it_was = row;
  row.answered = ahead.stage;
  row.reason = static_cast<std::int8_t>(flow::Reason::kFinal);
  row.begun = ahead.begun;
  row.before += row.awaits ? row.executed : 0;
  row.executed = ahead.executed;
  row.worker = ahead.worker;
  row.runtime = ahead.runtime;
  row.length = ahead.length;
  row.computed = ahead.computed;
  if (!runs) return conclude(slot, latency);
  report(slot, latency);
  requests_[slot] = as_it_was;  // the worker is not through, or the row has just expired
  requests_[slot].over = true;
}

bool Engine::Impl::settles_for(Slot slot, flow::Reason reason) {
  Request& request = requests_[slot];
  if (request.answered < 0) return false;
  if (reason == flow::Reason::kDeadline) {
    journeys_->price.short_of_time();
    if (journeys_->cascade().auto_price) reason = flow::Reason::kLoad;
  }
  request.reason = static_cast<std::int8_t>(reason);
  request.begun = now_;
  conclude(slot, now_ - request.arrived + options_.overhead);
  return true;
}

void Engine::Impl::find_ways() {
  if (roots_) {
    roots_->find_ways(now_);
    conclude_roots();
    settle();
  }
  if (!journeys_) return;
  for (Slot slot = 0; slot < requests_.slots(); ++slot) {
    Request& request = requests_[slot];
    if (request.extra || request.awaits || request.over) continue;
    if (!request.present || scheduler_.fits_any(request.length, journeys_->variant(request.stage))) continue;
    const auto there = present(request);
    std::int32_t to = journeys_->entry(there);
    if (request.answered >= 0) {
      const auto decision = journeys_->decide(request, request.answered, there, 0);
      to = decision.exit ? -1 : decision.to;
    }
    if (to < 0 && request.answered < 0) continue;
    if (!scheduler_.cancel(request.handle, slot, now_, actions_)) continue;  // it runs, or has just expired
    if (to >= 0 && enter(slot, to)) continue;
    if (!settles_for(slot, flow::Reason::kStageAbsent)) end(slot, Outcome::kRejected);
  }
  settle();
}

}  // namespace arlo::simulate
