#include "gateway/desk/admission.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "gateway/fleet/cascade.h"

namespace arlo::gateway {
namespace {

constexpr double kForgotten = 15e9;   // half-life of a delay, ns: if it refused every request, the next one is a trial
constexpr double kUsualDelay = 1.25;  // until one has been measured
constexpr double kMostDelay = 2;

Fault overload(TimeNs predicted, std::string message) {
  Fault fault{Code::kResourceExhausted, std::move(message)};
  fault.overload = true;
  fault.predicted_ms = predicted / kMs;
  return fault;
}

Fault too_late(const Call& call, TimeNs predicted, TimeNs now) {
  return overload(predicted, "an answer would take about " + in_ms(predicted) + ", and the deadline is in " +
                                 in_ms(call.deadline_ns - now) + ": " + kMoreTime +
                                 ", send fewer rows at a time, or retry later");
}

}  // namespace

// A request whose rows alone take longer than the SLO cannot be on time. It becomes bulk and waits behind requests that
// can be.
MaybeFault Admission::weigh(Call& call, TimeNs now) {
  const bool own = call.kind != Call::Kind::kClient;
  if (call.rows.size() > 1 && !own && call.model->flow == nullptr) {
    const auto variant = call.rows.front().model().variant;
    lengths_.clear();
    for (const Row& row : call.rows) lengths_.push_back(row.length);
    auto [alone, behind] = scheduler_.forecast(lengths_, variant, now);
    if (alone != dispatch::kNever) {
      const bool fits = call.rows.size() <= config_.dispatch().max_queued() / 2;
      if (fits && alone > call.model->slo_ns && !call.request.says_class()) call.as_bulk = true;
      call.in_turn = fits && call.bulk();
      if (call.in_turn) {
        call.weighed_ns = now;
        call.forecast_ns = behind;
        const double times = delay_of(call.model->variant, now);
        alone = static_cast<TimeNs>(times * static_cast<double>(alone));
        behind = static_cast<TimeNs>(times * static_cast<double>(behind));
      }
      if (auto fault = call.in_turn ? room_for(call, variant, behind - alone) : MaybeFault()) return fault;
      if (call.by_default) {
        TimeNs later = 0;  // of a cascade, if every row went through all stages
        for (std::size_t s = 1; call.model->cascade != nullptr && s < call.model->cascade->stages.size(); ++s) {
          const auto stage = scheduler_.forecast(lengths_, call.model->cascade->stages[s].model->variant, now).alone;
          if (stage != dispatch::kNever) later += stage;
        }
        call.set_default_deadline(behind + later);
      }
      // The wait behind interactive rows is judged row by row. Giving up a request in turn after most of its rows have
      // run wastes that work, so it needs a tenth more time.
      const TimeNs needed = call.in_turn ? behind + behind / 10 : alone;
      if (now < call.waiting_deadline() && now + needed > call.waiting_deadline()) {
        return too_late(call, std::max(needed, behind), now);
      }
    }
  }
  if (now < call.waiting_deadline()) return {};
  return Fault{Code::kDeadlineExceeded, "the deadline had passed when the request came in"};
}

double Admission::delay_of(dispatch::VariantId variant, TimeNs now) const {
  if (variant >= delays_.size()) return kUsualDelay;
  const Delay& delay = delays_[variant];
  return kUsualDelay + (delay.times - kUsualDelay) * std::exp2(-static_cast<double>(now - delay.at) / kForgotten);
}

// The delay rises at once and falls gradually. A failed request shows only that it would have taken longer.
void Admission::learn_delay(const Call& call, TimeNs now) {
  if (call.forecast_ns <= 0) return;
  const auto variant = call.model->variant;
  const double known = delay_of(variant, now);
  const double seen = static_cast<double>(now - call.weighed_ns) / static_cast<double>(call.forecast_ns);
  if (call.fault.code != Code::kOk && seen <= known) return;
  if (variant >= delays_.size()) delays_.resize(std::size_t{variant} + 1, {kUsualDelay, 0});
  delays_[variant] = {std::clamp(seen > known ? seen : (known + seen) / 2, 1.0, kMostDelay), now};
}

// Bulk may fill half of the queue.
MaybeFault Admission::room_for(const Call& call, dispatch::VariantId variant, TimeNs ahead) const {
  const std::int64_t room = config_.dispatch().max_queued() / 2;
  const auto rows = static_cast<std::int64_t>(call.rows.size());
  const std::int64_t waiting = scheduler_.queued_of(variant);
  if (waiting + rows <= room) return {};
  return overload(ahead / waiting * (waiting + rows - room),
                  std::to_string(waiting) + " rows wait, and with the " + std::to_string(rows) +
                      " of this request they would be more than " + std::to_string(room) +
                      " (half of dispatch.max_queued): retry later, or send fewer rows at a time");
}

Fault Admission::refusal(const Row& row, const dispatch::Admitted& admitted, TimeNs now) {
  const auto variant = row.model().variant;
  switch (admitted.admission) {
    case dispatch::Admission::kTooLate:
      return too_late(*row.call, admitted.predicted, now);
    case dispatch::Admission::kFull: {
      const auto forecast = scheduler_.forecast({&row.length, 1}, variant, now);
      return overload(forecast.behind == dispatch::kNever ? 0 : forecast.behind - forecast.alone,
                      "the gateway's queue is full (" + std::to_string(config_.dispatch().max_queued()) +
                          " rows wait): try again later");
    }
    default:
      return fleet_.no_instance(row.length, variant);
  }
}

}  // namespace arlo::gateway
