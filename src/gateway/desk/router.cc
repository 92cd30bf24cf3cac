#include "gateway/desk/router.h"

#include <algorithm>
#include <utility>

#include "gateway/desk/effects.h"
#include "gateway/log.h"

namespace arlo::gateway {
namespace {

dispatch::Options options_of(const v1::DispatchConfig& config) {
  dispatch::Options options;
  options.policy = dispatch::parse_policy(config.policy());
  options.lambda = config.lambda();
  options.alpha = config.alpha();
  options.max_peek = static_cast<std::int32_t>(config.max_peek());
  options.max_queued = static_cast<std::int32_t>(config.max_queued());
  return options;
}

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

// A row that waits gives up a little before the client does, so that the client learns why.
TimeNs waiting_deadline(const Call& call) {
  return call.deadline_ns - std::min<TimeNs>(50'000'000, (call.deadline_ns - call.received_ns) / 20);
}

TimeNs due_of(const Call& call) { return call.received_ns + call.model->slo_ns; }

Fault too_late_fault(const Call& call, TimeNs predicted, TimeNs now) {
  return {Code::kResourceExhausted, "an answer would take " + std::to_string(predicted / 1'000'000) +
                                        " ms, and the deadline is in " +
                                        std::to_string((call.deadline_ns - now) / 1'000'000) + " ms"};
}

// A client that gives up at its deadline is heard of before ours: its time-out travelled for a while, and gRPC sends it
// rounded up, by as much as 1 %.
bool gave_up_at_deadline(const Call& call, TimeNs now) {
  constexpr TimeNs kTravel = 5'000'000;
  return now >= call.deadline_ns - kTravel - (call.deadline_ns - call.received_ns) / 100;
}

}  // namespace

Router::Router(const v1::GatewayConfig& config)
    : config_(config), started_at_ms_(unix_ms()), started_ns_(now_ns()), scheduler_(options_of(config.dispatch())) {}

Router::~Router() { stop(); }

std::shared_ptr<const ModelSpec> Router::model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

bool Router::ready() const {
  const std::lock_guard lock(mutex_);
  if (closing_ || stopping_ || model_ == nullptr) return false;
  return std::any_of(instances_.begin(), instances_.end(),
                     [](const auto& instance) { return instance->state == Instance::State::kActive; });
}

void Router::submit(Call& call) {
  const auto& lengths = call.request.lengths();
  std::vector<Row> rows(lengths.size());
  call.open_rows.store(static_cast<std::uint32_t>(lengths.size()), std::memory_order_relaxed);
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    call.rows = std::move(rows);
    const TimeNs now = now_ns();
    const TimeNs deadline = waiting_deadline(call);
    const TimeNs grace = call.received_ns + TimeNs{config_.unavailable_grace_ms()} * 1'000'000;
    Fault refused;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      auto& row = call.rows[i];
      row.call = &call;
      row.index = static_cast<std::uint32_t>(i);
      row.length = lengths[i];
      const auto level = scheduler_.ideal_level(row.length);
      if (level >= 0) ++levels_[static_cast<std::size_t>(level)].ideal;
      if (static_cast<std::size_t>(row.length) < arrivals_by_length_.size()) {
        ++arrivals_by_length_[static_cast<std::size_t>(row.length)];
      }
      if (call.cancelled) refused = {Code::kCancelled, "cancelled by the client"};
      if (refused.code == Code::kOk && now >= deadline) {
        refused = {Code::kDeadlineExceeded, "the deadline had passed when the request came in"};
      }
      if (refused.code != Code::kOk) {
        end_row(row, refused, now, effects);
        continue;
      }
      const bool fits = scheduler_.fits_any(row.length);
      row.state = Row::State::kWaiting;
      const auto admitted = scheduler_.arrive(
          reinterpret_cast<dispatch::Tag>(&row),
          {.length = row.length, .due = due_of(call), .deadline = fits ? deadline : std::min(deadline, grace)}, now,
          effects.actions);
      row.handle = admitted.handle;
      if (admitted.admission == dispatch::Admission::kFull) {
        refused = {Code::kResourceExhausted, "the gateway's queue is full (" +
                                                 std::to_string(config_.dispatch().max_queued()) +
                                                 " rows wait): try again later"};
        end_row(row, refused, now, effects);
      } else if (admitted.admission == dispatch::Admission::kTooLate) {
        refused = too_late_fault(call, admitted.predicted, now);
        end_row(row, refused, now, effects);
      } else if (admitted.admission == dispatch::Admission::kTooLong) {
        refused = no_instance_fault(row.length);
        end_row(row, refused, now, effects);
      } else {
        apply_actions(effects, now);
      }
    }
    // All rows or none: the answer is the fault, so what already waits need not run.
    if (refused.code != Code::kOk) {
      for (auto& row : call.rows) {
        if (row.state == Row::State::kWaiting && scheduler_.cancel(row.handle, now, effects.actions)) {
          end_row(row, refused, now, effects);
        }
      }
      apply_actions(effects, now);
    }
  }
  run(effects);
}

void Router::cancel(Call& call) {
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    if (call.cancelled) return;
    call.cancelled = true;
    const TimeNs now = now_ns();
    for (auto& row : call.rows) {
      if (row.state == Row::State::kWaiting) {
        static_cast<void>(scheduler_.cancel(row.handle, now, effects.actions));
        end_row(row,
                gave_up_at_deadline(call, now)
                    ? Fault{Code::kDeadlineExceeded, "the deadline passed while the request waited"}
                    : Fault{Code::kCancelled, "cancelled by the client"},
                now, effects);
      } else if (row.state == Row::State::kRunning) {
        row.upstream->ref();
        effects.cancels.push_back(row.upstream);
      }
    }
    apply_actions(effects, now);
  }
  run(effects);
}

void Router::count_refused(const Fault& fault) {
  const std::lock_guard lock(mutex_);
  ++outcomes_[static_cast<std::size_t>(outcome_of(fault.code))];
}

// Turns the scheduler's actions into effects. Ending a row may not produce actions, so one pass is enough except for
// parked rows that are admitted again.
void Router::apply_actions(Effects& effects, TimeNs now) {
  for (std::size_t i = 0; i < effects.actions.size(); ++i) {
    const dispatch::Action action = effects.actions[i];
    auto& row = *reinterpret_cast<Row*>(action.tag);
    switch (action.kind) {
      case dispatch::ActionKind::kStart:
        begin_row(row, action, now, effects);
        break;
      case dispatch::ActionKind::kExpired:
        expired_row(row, now, effects);
        break;
      case dispatch::ActionKind::kLost:
        row.lost = true;
        row.upstream->ref();
        effects.cancels.push_back(row.upstream);
        break;
    }
  }
  effects.actions.clear();
}

void Router::begin_row(Row& row, const dispatch::Action& action, TimeNs now, Effects& effects) {
  const auto& instance = by_slot_[action.instance];
  row.state = Row::State::kRunning;
  row.handle = action.handle;
  row.lost = false;
  row.level = action.level;
  row.demoted = action.demoted;
  row.padded = InferRequest::padded_length(row.length, instance->runtime);
  row.started_ns = now;
  ++row.attempts;
  auto& level = levels_[static_cast<std::size_t>(action.level)];
  ++level.dispatched;
  level.demoted += action.demoted ? 1 : 0;
  tokens_ += static_cast<std::uint64_t>(row.length);
  computed_tokens_ += static_cast<std::uint64_t>(row.padded);
  if (instance->in_flight++ == 0) instance->busy_since = now;
  ++instance->started;
  row.upstream = new UpstreamCall(*this, row, instance);
  ++open_upstream_;
  effects.starts.push_back(row.upstream);
}

void Router::expired_row(Row& row, TimeNs now, Effects& effects) {
  row.handle = dispatch::kNone;
  const TimeNs deadline = waiting_deadline(*row.call);
  if (!scheduler_.fits_any(row.length)) {
    end_row(row, no_instance_fault(row.length), now, effects);
  } else if (now >= deadline) {
    end_row(row,
            {Code::kDeadlineExceeded, "the request waited until its deadline (" +
                                          std::to_string((now - row.call->received_ns) / 1'000'000) + " ms)"},
            now, effects);
  } else {
    // It was parked with the shorter deadline of unavailable_grace_ms, and an instance has come since.
    const auto admitted =
        scheduler_.arrive(reinterpret_cast<dispatch::Tag>(&row),
                          {.length = row.length, .due = due_of(*row.call), .deadline = deadline}, now, effects.actions);
    row.handle = admitted.handle;
    if (admitted.admission == dispatch::Admission::kTooLate) {
      end_row(row, too_late_fault(*row.call, admitted.predicted, now), now, effects);
    } else if (admitted.handle == dispatch::kNone) {
      end_row(row, {Code::kResourceExhausted, "the gateway's queue is full: try again later"}, now, effects);
    }
  }
}

Fault Router::no_instance_fault(std::int32_t length) const {
  std::size_t active = 0;
  std::string why;
  for (const auto& instance : instances_) {
    active += instance->state == Instance::State::kActive ? 1 : 0;
    if (instance->runtime.max_length >= length && !instance->last_error.empty()) why = instance->last_error;
  }
  return {Code::kUnavailable, "no healthy instance takes a row of length " + std::to_string(length) + " (" +
                                  std::to_string(active) + " of " + std::to_string(instances_.size()) +
                                  " instances are active)" + (why.empty() ? "" : "; last error: " + why)};
}

void Router::end_row(Row& row, Fault fault, TimeNs now, Effects& effects) {
  row.state = Row::State::kEnded;
  row.fault = std::move(fault);
  row.ended_ns = now;
  row.handle = dispatch::kNone;
  row.upstream = nullptr;
  account_end(row, now);
  effects.ended.push_back(&row);
}

void Router::account_end(const Row& row, TimeNs now) {
  Outcome outcome = outcome_of(row.fault.code);
  if (row.fault.code == Code::kOk) {
    const TimeNs total = now - row.call->received_ns;
    outcome = total <= row.call->model->slo_ns ? Outcome::kOnTime : Outcome::kLate;
    const auto total_us = to_us(total);
    const auto queue_us = to_us(row.started_ns - row.call->received_ns);
    const auto execute_us = to_us(now - row.started_ns);
    window_total_.record(total_us, now);
    window_queue_.record(queue_us, now);
    window_execute_.record(execute_us, now);
    histograms_.total.record(total_us);
    histograms_.queue.record(queue_us);
    histograms_.execute.record(execute_us);
  }
  ++outcomes_[static_cast<std::size_t>(outcome)];
}

void Router::upstream_done(UpstreamCall& upstream, const grpc::Status& status) {
  Row& row = upstream.row();
  Call& call = *row.call;
  const auto& instance = upstream.instance();
  Fault fault;
  auto failure = WorkerFailure::kRow;
  if (status.ok()) {
    row.response = single_slice(upstream.response());
    row.parsed = {};
    auto bad = row.parsed.parse({reinterpret_cast<const char*>(row.response.begin()), row.response.size()}, *call.model,
                                call.request, row.padded);
    if (bad) fault = std::move(*bad);
  } else {
    failure = classify(status);
    fault = {static_cast<Code>(status.error_code()), "worker '" + instance->worker_label + "', runtime '" +
                                                         instance->runtime.name + "': " + status.error_message()};
    if (failure == WorkerFailure::kExpired) fault.code = Code::kDeadlineExceeded;
    if (failure == WorkerFailure::kBusy) fault.code = Code::kResourceExhausted;
    if (failure == WorkerFailure::kDead || failure == WorkerFailure::kMissing) fault.code = Code::kUnavailable;
  }

  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    const TimeNs now = now_ns();
    row.upstream = nullptr;
    if (--instance->in_flight == 0) instance->busy_ns += now - instance->busy_since;
    if (status.ok()) {
      ++instance->answered;
      instance->ejections_in_row = 0;
    }

    const bool elsewhere = row.lost || failure == WorkerFailure::kDead || failure == WorkerFailure::kMissing ||
                           failure == WorkerFailure::kBusy;
    const bool again = !status.ok() && elsewhere && !call.cancelled && row.attempts < config_.max_attempts() &&
                       now < waiting_deadline(call);
    if (!status.ok() && !row.lost && !call.cancelled) {
      ++instance->failed;
      const bool gone = failure == WorkerFailure::kDead || failure == WorkerFailure::kMissing;
      // The scheduler hands this row back with the others that ran there (kLost); its upstream call is over already.
      if (gone && instance->slot != dispatch::kNone) {
        row.upstream = &upstream;
        eject(instance, status.error_message(), now, effects);
        apply_actions(effects, now);
        row.upstream = nullptr;
      }
    }
    if (again) {
      ++retries_;
      row.state = Row::State::kWaiting;
      const auto avoid = row.lost ? dispatch::kNone : instance->slot;
      row.lost = false;
      static_cast<void>(scheduler_.retry(row.handle, avoid, now, effects.actions));
    } else {
      if (row.lost) {
        scheduler_.abandon(row.handle);
      } else {
        const auto verdict = fault.code == Code::kOk ? dispatch::Verdict::kAnswered : dispatch::Verdict::kFailed;
        scheduler_.finish(row.handle, verdict, now, effects.actions);
      }
      if (call.cancelled && !status.ok()) {
        fault = gave_up_at_deadline(call, now)
                    ? Fault{Code::kDeadlineExceeded, "the deadline passed while the request ran"}
                    : Fault{Code::kCancelled, "cancelled by the client"};
      }
      end_row(row, std::move(fault), now, effects);
    }
    apply_actions(effects, now);
    check_drained(instance, effects);
    if (--open_upstream_ == 0) idle_.notify_all();
  }
  run(effects);
}

// Outside the lock.
void Router::run(Effects& effects) {
  for (auto* upstream : effects.cancels) {
    upstream->try_cancel();
    upstream->unref();
  }
  for (auto* upstream : effects.starts) upstream->start();
  for (const auto& instance : effects.checks) check_health(instance);
  for (auto* row : effects.ended) {
    if (row->call->open_rows.fetch_sub(1, std::memory_order_acq_rel) == 1) row->call->complete();
  }
  for (const auto& call : effects.calls) call();
}

}  // namespace arlo::gateway
