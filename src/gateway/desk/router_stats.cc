// What the router reports: the stats message for the control plane, histograms for /metrics.
#include "gateway/desk/router.h"

namespace arlo::gateway {
namespace {

void fill(const LatencyWindow& window, TimeNs now, v1::Percentiles* out) {
  const auto summary = window.summary(now);
  out->set_count(summary.count);
  out->set_window_s(LatencyWindow::kSlots);
  out->set_mean_us(summary.mean_us);
  out->set_p50_us(summary.p50_us);
  out->set_p90_us(summary.p90_us);
  out->set_p98_us(summary.p98_us);
  out->set_p99_us(summary.p99_us);
  out->set_max_us(summary.max_us);
}

v1::InstanceStats::State state_of(const Instance& instance) {
  switch (instance.state) {
    case Instance::State::kJoining:
      return v1::InstanceStats::STATE_JOINING;
    case Instance::State::kActive:
      return v1::InstanceStats::STATE_ACTIVE;
    case Instance::State::kDraining:
      return v1::InstanceStats::STATE_DRAINING;
    case Instance::State::kEjected:
      return v1::InstanceStats::STATE_EJECTED;
    case Instance::State::kDrained:
      return v1::InstanceStats::STATE_DRAINED;
  }
  return v1::InstanceStats::STATE_UNSPECIFIED;
}

}  // namespace

v1::Deployment Router::deployment() const {
  const std::lock_guard lock(mutex_);
  return deployment_;
}

Router::Histograms Router::histograms() const {
  const std::lock_guard lock(mutex_);
  return histograms_;
}

void Router::stats(v1::Stats* out) const {
  const std::lock_guard lock(mutex_);
  const TimeNs now = now_ns();
  out->set_started_at_ms(started_at_ms_);
  out->set_at_ms(unix_ms());
  out->set_uptime_ns(static_cast<std::uint64_t>(now - started_ns_));
  out->set_deployment_version(deployment_.version());
  out->set_policy(config_.dispatch().policy());
  out->mutable_arrivals_by_length()->Add(arrivals_by_length_.begin(), arrivals_by_length_.end());
  for (const auto& level : levels_) {
    auto* stats = out->add_levels();
    stats->set_max_length(static_cast<std::uint32_t>(level.max_length));
    stats->set_ideal(level.ideal);
    stats->set_dispatched(level.dispatched);
    stats->set_demoted(level.demoted);
    std::uint32_t active = 0;
    for (const auto& instance : instances_) {
      active += instance->state == Instance::State::kActive && instance->runtime.max_length == level.max_length ? 1 : 0;
    }
    stats->set_instances(active);
  }
  for (const auto& instance : instances_) {
    auto* stats = out->add_instances();
    stats->set_id(instance->id);
    stats->set_worker(instance->worker_label);
    stats->set_runtime(instance->runtime.name);
    stats->set_state(state_of(*instance));
    stats->set_in_flight(instance->in_flight);
    if (instance->slot != dispatch::kNone) {
      stats->set_queued(static_cast<std::uint32_t>(scheduler_.view(instance->slot).queued));
    }
    stats->set_started(instance->started);
    stats->set_failed(instance->failed);
    const TimeNs busy = instance->busy_ns + (instance->in_flight != 0 ? now - instance->busy_since : 0);
    stats->set_busy_us(static_cast<std::uint64_t>(busy / 1000));
  }
  auto* outcomes = out->mutable_outcomes();
  outcomes->set_on_time(outcomes_[static_cast<std::size_t>(Outcome::kOnTime)]);
  outcomes->set_late(outcomes_[static_cast<std::size_t>(Outcome::kLate)]);
  outcomes->set_rejected(outcomes_[static_cast<std::size_t>(Outcome::kRejected)]);
  outcomes->set_expired(outcomes_[static_cast<std::size_t>(Outcome::kExpired)]);
  outcomes->set_cancelled(outcomes_[static_cast<std::size_t>(Outcome::kCancelled)]);
  outcomes->set_failed(outcomes_[static_cast<std::size_t>(Outcome::kFailed)]);
  out->set_queued(static_cast<std::uint32_t>(scheduler_.queued()));
  out->set_parked(static_cast<std::uint32_t>(scheduler_.parked()));
  out->set_in_flight(static_cast<std::uint32_t>(scheduler_.in_flight()));
  fill(window_total_, now, out->mutable_total());
  fill(window_queue_, now, out->mutable_queue());
  fill(window_execute_, now, out->mutable_execute());
  out->set_tokens(tokens_);
  out->set_computed_tokens(computed_tokens_);
  out->set_retries(retries_);
  out->set_ejections(ejections_);
}

}  // namespace arlo::gateway
