#include "gateway/desk/books.h"

#include <algorithm>
#include <utility>

#include "gateway/fleet/cascade.h"

namespace arlo::gateway {
namespace {

Outcome outcome_of(Code code) {
  switch (code) {
    case Code::kDeadlineExceeded:
      return Outcome::kExpired;
    case Code::kCancelled:
      return Outcome::kCancelled;
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kResourceExhausted:
    case Code::kUnimplemented:
    case Code::kUnauthenticated:
      return Outcome::kRejected;
    default:
      return Outcome::kFailed;
  }
}

std::uint64_t to_us(TimeNs ns) { return ns <= 0 ? 0 : static_cast<std::uint64_t>(ns / 1000); }

void fill_window(const LatencyWindow& window, TimeNs now, v1::Percentiles* out) {
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

}  // namespace

void Books::relevel(const dispatch::Scheduler& scheduler, dispatch::VariantId variant) {
  std::vector<LevelCount> levels;
  for (std::int32_t level = 0; level < scheduler.levels(); ++level) {
    if (scheduler.level_variant(level) != variant) continue;
    if (levels.empty()) first_level_ = level;
    levels.push_back({.max_length = scheduler.level_max_length(level)});
    for (const auto& old : levels_) {
      if (old.max_length == levels.back().max_length) levels.back() = old;
    }
  }
  levels_ = std::move(levels);
  if (!levels_.empty()) {
    arrivals_by_length_.resize(
        std::max(arrivals_by_length_.size(), static_cast<std::size_t>(levels_.back().max_length) + 1));
  }
}

void Books::arrived(std::int32_t length, std::int32_t ideal_level) {
  if (ideal_level >= 0) ++at(ideal_level).ideal;
  const auto tokens = static_cast<std::size_t>(length);
  if (ideal_level < 0 && tokens >= arrivals_by_length_.size()) arrivals_by_length_.resize(tokens + 1);
  if (tokens < arrivals_by_length_.size()) ++arrivals_by_length_[tokens];
}

void Books::started(const Row& row) {
  auto& level = at(row.level);
  ++level.dispatched;
  level.demoted += row.demoted ? 1 : 0;
  tokens_ += static_cast<std::uint64_t>(row.length);
  computed_tokens_ += static_cast<std::uint64_t>(row.padded);
}

void Books::unstarted(const Row& row) {
  auto& level = at(row.level);
  --level.dispatched;
  level.demoted -= row.demoted ? 1 : 0;
  tokens_ -= static_cast<std::uint64_t>(row.length);
  computed_tokens_ -= static_cast<std::uint64_t>(row.padded);
}

void Books::count(const Fault& fault, std::uint64_t rows) {
  outcomes_[static_cast<std::size_t>(outcome_of(fault.code))] += rows;
  if (fault.overload) overloaded_ += rows;
}

void Books::ended(const Call& call, TimeNs now) {
  if (call.fault.code != Code::kOk) {
    count(call.fault, call.rows.size());
    return;
  }
  const TimeNs total = now - call.received_ns;
  const bool bulk = call.bulk();  // bulk is never due, and its waits would hide those of other rows
  const auto outcome = bulk || total <= call.model->slo_ns ? Outcome::kOnTime : Outcome::kLate;
  outcomes_[static_cast<std::size_t>(outcome)] += call.rows.size();
  if (bulk) {
    bulk_ += call.rows.size();
    return;
  }
  const auto total_us = to_us(total);
  for (const auto& row : call.rows) {
    const auto queue_us = to_us(row.queued_ns());
    const auto execute_us = to_us(row.executed_ns());
    window_total_.record(total_us, now);
    window_queue_.record(queue_us, now);
    window_execute_.record(execute_us, now);
    histograms_.total.record(total_us);
    histograms_.queue.record(queue_us);
    histograms_.execute.record(execute_us);
    if (call.trace == nullptr || call.trace->own == 0) continue;
    const auto& trace_id = call.trace->parent.trace_id;
    const auto at = unix_ms();
    histograms_.total.exemplify(total_us, trace_id, at);
    histograms_.queue.exemplify(queue_us, trace_id, at);
    histograms_.execute.exemplify(execute_us, trace_id, at);
  }
}

void Books::fill(v1::Stats* out, TimeNs now) const {
  out->mutable_arrivals_by_length()->Add(arrivals_by_length_.begin(), arrivals_by_length_.end());
  for (const auto& level : levels_) {
    auto* stats = out->add_levels();
    stats->set_max_length(static_cast<std::uint32_t>(level.max_length));
    stats->set_ideal(level.ideal);
    stats->set_dispatched(level.dispatched);
    stats->set_demoted(level.demoted);
  }
  const auto of = [this](Outcome outcome) { return outcomes_[static_cast<std::size_t>(outcome)]; };
  auto* outcomes = out->mutable_outcomes();
  outcomes->set_on_time(of(Outcome::kOnTime));
  outcomes->set_late(of(Outcome::kLate));
  outcomes->set_rejected(of(Outcome::kRejected));
  outcomes->set_expired(of(Outcome::kExpired));
  outcomes->set_cancelled(of(Outcome::kCancelled));
  outcomes->set_failed(of(Outcome::kFailed));
  outcomes->set_overloaded(overloaded_);
  fill_window(window_total_, now, out->mutable_total());
  fill_window(window_queue_, now, out->mutable_queue());
  fill_window(window_execute_, now, out->mutable_execute());
  out->set_tokens(tokens_);
  out->set_computed_tokens(computed_tokens_);
  out->set_retries(retries_);
  out->set_batches(batches_);
  out->set_bulk(bulk_);
}

}  // namespace arlo::gateway
