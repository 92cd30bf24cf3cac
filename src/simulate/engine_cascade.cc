// The simulated rows of cascades: their way from stage to stage, and their answers.
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
  if (decision.exit) return false;
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
