#include "plugins/scheduler/desk.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace arlo::triton {
namespace {

constexpr TimeNs kBusyPause = 5 * kMs;        // of an engine whose own queue is full
constexpr TimeNs kSuspectPause = 200 * kMs;   // while another engine judges the row
constexpr TimeNs kFirstBackoff = 1000 * kMs;  // of an engine that was at fault
constexpr TimeNs kLastBackoff = 30'000 * kMs;
constexpr std::size_t kLooks = 256;  // open calls that a tick looks at

dispatch::Tag TagOf(const Row& row) { return reinterpret_cast<dispatch::Tag>(&row); }

// Rows that a row may go with after its batch failed: half as many.
std::int32_t Fewer(const Row& row) {
  if (row.batch_rows <= 1) return 1;
  return static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(row.batch_rows) - 1));
}

}  // namespace

Desk::Desk(const LogicalConfig& config)
    : config_(config),
      scheduler_(config.dispatch),
      engines_(config.engines.size()),
      counts_(config.engines.size()),
      samples_(config.engines.size()) {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    engines_[i].runtime = scheduler_.add_runtime(config.engines[i].cost);
    bundles_[std::uint64_t{1} << i] = engines_[i].runtime;
    by_runtime_.resize(std::max<std::size_t>(by_runtime_.size(), engines_[i].runtime + 1));
    by_runtime_[engines_[i].runtime] = i;
  }
}

// ---- requests ----

// All rows or none: once one of them is refused, nothing of the request is answered.
void Desk::Submit(Call& call, TimeNs now, Effects& effects) {
  call.rows = std::vector<Row>(call.lengths.size());
  call.open_rows = static_cast<std::uint32_t>(call.rows.size());
  open_.insert(&call);
  for (std::size_t i = 0; i < call.rows.size(); ++i) {
    Row& row = call.rows[i];
    row.call = &call;
    row.index = static_cast<std::uint32_t>(i);
    row.length = call.lengths[i];
  }
  if (stopping_) {
    Fail(call, {Code::kUnavailable, "the server is stopping"}, now, effects);
    return;
  }
  const bool several = call.rows.size() > 1;
  if (several) scheduler_.hold();  // they may go as batches
  for (Row& row : call.rows) {
    if (call.fault.code != Code::kOk) break;
    const auto admitted = scheduler_.arrive(TagOf(row),
                                            {.length = row.length,
                                             .due = call.received_ns + config_.model.slo_ns,
                                             .deadline = call.deadline_ns,
                                             .bulk = call.bulk},
                                            now, effects.actions);
    if (admitted.handle == dispatch::kNone) {
      Fail(call, Refusal(row, admitted, now), now, effects);
    } else {
      row.handle = admitted.handle;
      row.state = Row::State::kWaiting;
    }
    Settle(now, effects);
  }
  if (several) scheduler_.release(now, effects.actions);
  Settle(now, effects);
}

Fault Desk::Refusal(const Row& row, const dispatch::Admitted& admitted, TimeNs now) const {
  Fault fault{Code::kResourceExhausted, ""};
  switch (admitted.admission) {
    case dispatch::Admission::kTooLate:
      fault.message = "an answer would take about " + in_ms(admitted.predicted) + ", and the deadline is in " +
                      in_ms(row.call->deadline_ns - now) + ": allow more time, or try again later";
      return fault;
    case dispatch::Admission::kFull:
      fault.message = "the queue is full (" + std::to_string(config_.dispatch.max_queued) +
                      " rows wait; parameter max_queued): try again later";
      return fault;
    default:
      return NoEngine(row.length);
  }
}

Fault Desk::NoEngine(std::int32_t length) const {
  Fault fault{Code::kUnavailable, "no engine for " + std::to_string(length) + " tokens is in service:"};
  for (std::size_t i = config_.Ideal(length); i < engines_.size(); ++i) {
    const Engine& engine = engines_[i];
    fault.message += " " + config_.engines[i].info.name +
                     (!engine.loaded ? " is not loaded;" : " is put aside (" + engine.last_error + ");");
  }
  fault.message.back() = '.';
  return fault;
}

void Desk::Fail(Call& call, Fault fault, TimeNs now, Effects& effects) {
  if (call.fault.code != Code::kOk) return;
  call.fault = std::move(fault);
  for (Row& row : call.rows) {
    if (row.state == Row::State::kEnded) continue;
    if (row.state == Row::State::kRunning) {
      Batch& batch = *row.batch;
      batch.rows[row.place] = nullptr;
      const bool wanted = std::any_of(batch.rows.begin(), batch.rows.end(), [](const Row* each) { return each; });
      if (!wanted && !batch.cancelled) {
        batch.cancelled = true;
        effects.cancels.push_back(&batch);
      }
    } else if (row.state == Row::State::kWaiting && row.handle != dispatch::kNone) {
      // When it does not wait any more, its start or its end is among the actions that are still to be settled.
      static_cast<void>(scheduler_.cancel(row.handle, TagOf(row), now, effects.actions));
    }
    End(row, now, effects);
  }
}

void Desk::End(Row& row, TimeNs now, Effects& effects) {
  row.state = Row::State::kEnded;
  row.ended_ns = now;
  row.handle = dispatch::kNone;
  row.batch = nullptr;
  Call& call = *row.call;
  if (--call.open_rows > 0) return;
  open_.erase(&call);
  effects.answers.push_back(&call);
}

// ---- the scheduler's decisions ----

// Carrying out an action may add others, so the list grows while it is walked.
void Desk::Settle(TimeNs now, Effects& effects) {
  for (std::size_t i = 0; i < effects.actions.size();) {
    const dispatch::Action action = effects.actions[i];
    if (action.kind == dispatch::ActionKind::kStart) {
      i = Begin(i, now, effects);
      continue;
    }
    ++i;
    if (action.kind == dispatch::ActionKind::kExpired) Expired(*reinterpret_cast<Row*>(action.tag), now, effects);
    // kLost: the bundle has changed, and the engine goes on with the row. Its answer, or its failure, ends that state;
    // the row itself may be gone.
  }
  effects.actions.clear();
}

std::size_t Desk::Begin(std::size_t at, TimeNs now, Effects& effects) {
  const dispatch::Action first = effects.actions[at];
  // Collected before any of them is handled: handling may add rows of a later batch with the same number.
  std::size_t end = at + 1;
  const auto same_batch = [&](const dispatch::Action& action) {
    return action.kind == dispatch::ActionKind::kStart && action.batch == first.batch &&
           action.instance == first.instance;
  };
  while (first.batch != dispatch::kNone && end < effects.actions.size() && same_batch(effects.actions[end])) ++end;
  // First, because a call that ends here may have several of the rows.
  for (std::size_t i = at; i < end; ++i) {
    const Row& row = *reinterpret_cast<Row*>(effects.actions[i].tag);
    if (row.state == Row::State::kEnded || !given_up(*row.call)) continue;
    Fail(*row.call, {Code::kCancelled, "cancelled by the client"}, now, effects);
  }
  batch_.clear();
  for (; at < end; ++at) {
    const dispatch::Action action = effects.actions[at];
    Row& row = *reinterpret_cast<Row*>(action.tag);
    if (row.state == Row::State::kEnded) {  // its call ended after the decision, and before it was carried out
      scheduler_.finish(action.handle, dispatch::Verdict::kFailed, now, effects.actions);
    } else {
      batch_.emplace_back(&row, action.handle);
    }
  }
  if (batch_.empty()) return end;

  const std::size_t engine = by_runtime_[first.runtime];
  const auto& info = config_.engines[engine].info;
  auto* batch = new Batch;
  batch->engine = engine;
  batch->started_ns = now;
  std::int32_t longest = 0;
  for (const auto& each : batch_) longest = std::max(longest, each.first->length);
  batch->tokens = info.dynamic ? longest : info.max_length;
  EngineCounts& counts = counts_[engine];
  ++counts.batches;
  EngineSamples& samples = samples_[engine];
  samples.batch_rows.push_back(static_cast<double>(batch_.size()));
  for (const auto& [row, handle] : batch_) {
    row->state = Row::State::kRunning;
    row->handle = handle;
    row->engine = static_cast<std::int32_t>(engine);
    row->demoted = engine != config_.Ideal(row->length);
    row->padded = batch->tokens;
    row->batch_rows = static_cast<std::int32_t>(batch_.size());
    row->started_ns = now;
    row->unfit_since_ns = 0;
    row->batch = batch;
    row->place = static_cast<std::uint32_t>(batch->rows.size());
    batch->rows.push_back(row);
    batch->handles.push_back(row->handle);
    batch->calls.push_back(row->call);
    batch->indices.push_back(row->index);
    batch->outputs |= row->call->outputs;
    row->call->holds.fetch_add(1, std::memory_order_relaxed);
    ++counts.rows;
    counts.demoted_rows += row->demoted ? 1 : 0;
    counts.tokens += static_cast<std::uint64_t>(row->length);
    counts.computed_tokens += static_cast<std::uint64_t>(batch->tokens);
    const TimeNs wait = now - row->call->received_ns;
    counts.wait_us += static_cast<std::uint64_t>(wait / 1000);
    samples.wait_s.push_back(static_cast<double>(wait) / 1e9);
  }
  running_.insert(batch);
  effects.starts.push_back(batch);
  return end;
}

std::vector<EngineSamples> Desk::TakeSamples() {
  return std::exchange(samples_, std::vector<EngineSamples>(engines_.size()));
}

void Desk::Expired(Row& row, TimeNs now, Effects& effects) {
  if (row.state == Row::State::kEnded) return;
  row.handle = dispatch::kNone;
  Call& call = *row.call;
  const auto waited = in_ms(now - call.received_ns);
  if (!scheduler_.fits_any(row.length)) {
    Fail(call, NoEngine(row.length), now, effects);
  } else if (now >= call.deadline_ns) {
    Fail(call, {Code::kDeadlineExceeded, "the request waited until its deadline (" + waited + ")"}, now, effects);
  } else if (call.bulk && scheduler_.queued() >= config_.dispatch.max_queued) {
    Fail(call, {Code::kResourceExhausted, "the queue is full, and interactive requests go first: try again later"}, now,
         effects);
  } else {
    Fail(call, {Code::kDeadlineExceeded, "the request waited " + waited + ", and its deadline cannot be met any more"},
         now, effects);
  }
}

// ---- answers ----

void Desk::Answered(Batch& batch, Reply reply, const std::string& why, TimeNs now, Effects& effects) {
  running_.erase(&batch);
  batch.cancelled = true;  // it is too late for that
  Engine& engine = engines_[batch.engine];
  switch (reply) {
    case Reply::kGood:
      if (engine.aside_until == 0) engine.backoff = 0;
      break;
    case Reply::kBusy:
      engine.aside_until = std::max(engine.aside_until, now + kBusyPause);
      break;
    case Reply::kGone:
      if (engine.loaded) effects.notes.push_back({true, config_.engines[batch.engine].info.name + " is gone: " + why});
      engine.loaded = false;
      break;
    case Reply::kStopping:
    case Reply::kDropped:
      break;
    default:
      ++counts_[batch.engine].failed_batches;
      if (reply == Reply::kError) engine.last_error = why;
  }
  Regroup(now, effects);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i] != nullptr) {
      Conclude(*batch.rows[i], batch, reply, why, now, effects);
    } else {  // its client has been answered already
      const auto verdict = reply == Reply::kGood ? dispatch::Verdict::kAnswered : dispatch::Verdict::kFailed;
      scheduler_.finish(batch.handles[i], verdict, now, effects.actions);
    }
  }
  Regroup(now, effects);  // suspicions
  Settle(now, effects);
  if (reply == Reply::kStopping) Stop(now, effects);
}

// Applies an engine's answer to one of its rows: it ends, or runs again.
void Desk::Conclude(Row& row, Batch& batch, Reply reply, const std::string& why, TimeNs now, Effects& effects) {
  row.batch = nullptr;
  if (reply == Reply::kGood) {
    scheduler_.finish(row.handle, dispatch::Verdict::kAnswered, now, effects.actions);
    if (row.suspect >= 0 && row.suspect != row.engine) PutAside(static_cast<std::size_t>(row.suspect), now, effects);
    row.answer = batch.answer;
    End(row, now, effects);
    return;
  }
  const bool failed = reply == Reply::kError || reply == Reply::kBadInput;
  const bool alone = failed && row.batch_rows == 1;
  if (alone) ++row.attempts;
  bool again = reply != Reply::kStopping;
  if (alone) {
    Engine& engine = engines_[batch.engine];
    const std::size_t ideal = config_.Ideal(row.length);
    bool another = false;
    for (std::size_t i = ideal; i < engines_.size(); ++i) another = another || (i != batch.engine && usable(i));
    if (reply == Reply::kBadInput || (row.suspect >= 0 && row.suspect != row.engine)) {
      again = false;  // it is the row
    } else if (row.suspect < 0 && another) {
      row.suspect = static_cast<std::int32_t>(batch.engine);
      engine.aside_until = std::max(engine.aside_until, now + kSuspectPause);
      Regroup(now, effects);
    } else {
      again = row.attempts < config_.max_attempts;
    }
    if (!again && row.suspect >= 0) {
      Engine& suspect = engines_[static_cast<std::size_t>(row.suspect)];
      if (suspect.backoff == 0) suspect.aside_until = 0;  // acquitted
    }
  }
  if (again && now < row.call->deadline_ns) {
    row.state = Row::State::kWaiting;
    const std::int32_t most = failed ? Fewer(row) : 0;
    static_cast<void>(scheduler_.retry(row.handle, dispatch::kNone, now, effects.actions, most));
    return;
  }
  scheduler_.finish(row.handle, dispatch::Verdict::kFailed, now, effects.actions);
  row.state = Row::State::kNew;  // neither waits nor runs
  Code code = Code::kInternal;
  if (reply == Reply::kBadInput) code = Code::kInvalidArgument;
  if (reply == Reply::kBusy || reply == Reply::kGone || reply == Reply::kStopping) code = Code::kUnavailable;
  const auto& name = config_.engines[batch.engine].info.name;
  Fail(*row.call, {code, "row " + std::to_string(row.index) + ", engine " + name + ": " + why}, now, effects);
  if (row.state != Row::State::kEnded) End(row, now, effects);
}

// ---- engines ----

void Desk::PutAside(std::size_t index, TimeNs now, Effects& effects) {
  Engine& engine = engines_[index];
  if (engine.backoff > 0 && engine.aside_until > now) return;  // it is already
  engine.backoff = std::clamp(2 * engine.backoff, kFirstBackoff, kLastBackoff);
  engine.aside_until = now + engine.backoff;
  effects.notes.push_back({true, config_.engines[index].info.name +
                                     " fails rows that another engine answers: put aside for " + in_ms(engine.backoff) +
                                     "; its last error: " + engine.last_error});
}

void Desk::Regroup(TimeNs now, Effects& effects) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    Engine& engine = engines_[i];
    if (engine.aside_until != 0 && engine.aside_until <= now) engine.aside_until = 0;
    if (engine.loaded && engine.aside_until == 0) mask |= std::uint64_t{1} << i;
  }
  if (mask == mask_) return;
  mask_ = mask;
  if (instance_ != dispatch::kNone) scheduler_.leave(std::exchange(instance_, dispatch::kNone), now, effects.actions);
  if (mask == 0) return;
  auto& runtime = bundles_.try_emplace(mask, dispatch::kNone).first->second;
  if (runtime == dispatch::kNone) {
    std::vector<dispatch::RuntimeId> members;
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      if ((mask >> i & 1) != 0) members.push_back(engines_[i].runtime);
    }
    runtime = scheduler_.add_bundle(members);
  }
  instance_ = scheduler_.join(runtime, config_.inflight_limit, now, effects.actions);
}

void Desk::Loaded(const std::vector<bool>& loaded, TimeNs now, Effects& effects) {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    Engine& engine = engines_[i];
    if (engine.loaded == loaded[i]) continue;
    effects.notes.push_back(
        {!loaded[i], config_.engines[i].info.name + (loaded[i] ? " is in service" : " is not loaded any more")});
    engine.loaded = loaded[i];
    engine.aside_until = 0;  // the next one is another engine
    engine.backoff = 0;
  }
  Regroup(now, effects);
  Settle(now, effects);
}

void Desk::Stop(TimeNs now, Effects& effects) {
  stopping_ = true;
  for (auto at = open_.begin(); at != open_.end();) {
    Call* const call = *at++;  // which may end
    const bool waits = std::any_of(call->rows.begin(), call->rows.end(),
                                   [](const Row& row) { return row.state == Row::State::kWaiting; });
    if (waits) Fail(*call, {Code::kUnavailable, "the server is stopping"}, now, effects);
  }
  Settle(now, effects);
}

// ---- time ----

void Desk::Tick(TimeNs now, Effects& effects) {
  Regroup(now, effects);
  // Not only when a deadline has come: `late` looks again at waiting rows, which it does at events only.
  if (scheduler_.queued() > 0) scheduler_.expire(now, effects.actions);
  Settle(now, effects);
  // Rows at engines have no deadline in the scheduler.
  for (const Batch* batch : running_) {
    for (Row* row : std::vector<Row*>(batch->rows)) {
      if (row == nullptr || row->state != Row::State::kRunning || now < row->call->deadline_ns) continue;
      Fail(*row->call, {Code::kDeadlineExceeded, "the deadline passed while the request was served"}, now, effects);
    }
  }
  CheckUnfit(now, effects);
  auto next = open_.upper_bound(look_);
  for (std::size_t looks = std::min(kLooks, open_.size()); looks > 0 && !open_.empty(); --looks) {
    if (next == open_.end()) next = open_.begin();
    Call* const call = look_ = *next++;
    if (given_up(*call)) Fail(*call, {Code::kCancelled, "cancelled by the client"}, now, effects);
  }
  Settle(now, effects);
}

// Rows that no engine in service is long enough for wait for one, but not for ever.
void Desk::CheckUnfit(TimeNs now, Effects& effects) {
  if (scheduler_.parked() == 0) return;
  for (auto at = open_.begin(); at != open_.end();) {
    Call* const call = *at++;  // which may end
    for (Row& row : call->rows) {
      if (row.state != Row::State::kWaiting) continue;
      if (scheduler_.fits_any(row.length)) {
        row.unfit_since_ns = 0;
      } else if (row.unfit_since_ns == 0) {
        row.unfit_since_ns = now;
      } else if (now - row.unfit_since_ns >= config_.grace_ns) {
        Fail(*call, NoEngine(row.length), now, effects);
        break;
      }
    }
  }
}

}  // namespace arlo::triton
