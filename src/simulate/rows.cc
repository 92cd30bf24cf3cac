#include "simulate/rows.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace arlo::simulate {

Rows::Rows(Core& core, std::optional<TokenQueries> tokens) : c_(core), tokens_(std::move(tokens)) {
  if (!tokens_) return;
  const auto& bins = tokens_->bins;
  need(!tokens_->queries.empty(), "queries: at least one");
  need(std::adjacent_find(bins.begin(), bins.end(), std::greater_equal<>()) == bins.end(), "bins must ascend");
  c_.scheduler.set_body(tokens_->counts.variants, solve::tokens::make_chooser(tokens_->counts));
}

void Rows::arrive(Slot slot) {
  if (admit(slot, arrival(c_.requests[slot])).handle == kNone) end(slot, Outcome::kRejected);
}

void Rows::answered(Slot slot) { conclude(slot, latency(c_.requests[slot])); }

void Rows::unanswered(Slot slot, Outcome outcome, flow::Reason /*reason*/) { end(slot, outcome); }

void Rows::give_up() {
  for (Slot slot = 0; slot < c_.requests.slots(); ++slot) {  // parked for ever
    const Request& request = c_.requests[slot];
    if (!request.present) continue;
    c_.scheduler.cancel(request.handle, slot, c_.now, c_.actions);
    unanswered(slot, Outcome::kFailed, flow::Reason::kStageAbsent);
  }
}

dispatch::Arrival Rows::arrival(const Request& request) const {
  dispatch::Arrival made{.length = request.length, .bulk = request.bulk, .variant = request.variant};
  const Core::Limits& limits = c_.limits[request.variant];
  if (limits.timeout != kNever) {
    const TimeNs overhead = c_.options.overhead;
    if (!request.bulk) made.due = request.arrived + std::max<TimeNs>(limits.slo - overhead, 0);
    made.deadline = request.arrived + std::max<TimeNs>(patience(request) - overhead, 0);
  }
  if (!tokens_) return made;
  need(request.variant < tokens_->queries.size(), "variant: none of the queries");
  const TokenQueries::Query& query = tokens_->queries[request.variant];
  made.due = kNever;
  made.variant = tokens_->counts.variants.front();
  made.utility = query.utility;
  made.kind = query.kind;
  const std::vector<std::int32_t>& bins = tokens_->bins;
  if (!bins.empty()) {
    const auto bin = std::lower_bound(bins.begin(), bins.end() - 1, request.length);
    made.kind += static_cast<std::uint32_t>(bin - bins.begin());
  }
  return made;
}

dispatch::Admitted Rows::admit(Slot slot, const dispatch::Arrival& arrival) {
  const dispatch::Admitted admitted = c_.scheduler.arrive(slot, arrival, c_.now, c_.actions);
  if (admitted.handle != kNone) c_.requests[slot].handle = admitted.handle;
  return admitted;
}

TimeNs Rows::patience(const Request& request) const {
  const TimeNs timeout = c_.limits[request.variant].timeout;
  if (!request.bulk || timeout == kNever) return timeout;
  return timeout < kFar / kBulkPatience ? kBulkPatience * timeout : kFar;
}

void Rows::conclude(Slot slot, TimeNs latency) {
  const Request& request = c_.requests[slot];
  Outcome outcome = request.bulk || latency <= c_.limits[request.variant].slo ? Outcome::kOnTime : Outcome::kLate;
  if (latency > patience(request)) outcome = Outcome::kExpired;
  if (outcome != Outcome::kExpired && c_.accounts.answered(request, latency, outcome == Outcome::kOnTime)) {
    RuntimeView& view = c_.fleet.runtime(request.runtime).view;
    ++view.served;
    view.demoted += request.demoted ? 1 : 0;
  }
  end(slot, outcome, latency);
}

void Rows::end(Slot slot, Outcome outcome, TimeNs latency) {
  c_.accounts.ended(c_.requests[slot], outcome, latency);
  c_.requests.give_back(slot);
}

}  // namespace arlo::simulate
