#include "simulate/engine.h"

#include <algorithm>
#include <string>
#include <utility>

namespace arlo::simulate {

Engine::Engine(const Options& options)
    : core_(options), rows_(std::make_unique<Rows>(core_)), expires_(options.timeout != kNever) {}

// Of a mode, which has to be set before all else.
void Engine::need_new(const char* mode) const {
  need(by_length_.empty() && journeys_ == nullptr && roots_ == nullptr,
       std::string(mode) + ": requests have arrived already, or there is a flow");
}

void Engine::set_variant(dispatch::VariantId variant, TimeNs slo, TimeNs timeout, double share) {
  need_duration(slo, "slo", 1);
  if (timeout != kNever) need_duration(timeout, "timeout", 1);
  need(by_length_.empty(), "variant: requests have arrived already");
  core_.scheduler.set_share(variant, share);
  core_.limits[variant] = {slo, timeout};
  expires_ = expires_ || timeout != kNever;
  core_.accounts.by_variant();
}

void Engine::set_cascade(Cascade cascade) {
  need_new("cascade");
  auto made = std::make_unique<Journeys>(core_, std::move(cascade));
  journeys_ = made.get();
  rows_ = std::move(made);
}

void Engine::set_pipeline(Pipeline pipeline) {
  need_new("pipeline");
  auto made = std::make_unique<Roots>(core_, std::move(pipeline));
  roots_ = made.get();
  rows_ = std::move(made);
  expires_ = true;
}

void Engine::set_tokens(TokenQueries tokens) {
  need_new("tokens");
  rows_ = std::make_unique<Rows>(core_, std::move(tokens));
}

void Engine::plan(const flow::pipeline::Plan& plan) {
  need(roots_ != nullptr, "plan: there is no pipeline");
  roots_->plan(plan);
}

void Engine::replace(WorkerId worker, RuntimeId runtime, TimeNs delay) {
  core_.fleet.replace(worker, runtime, delay, core_.now);
  settle();
}

void Engine::remove(WorkerId worker) {
  core_.fleet.remove(worker, core_.now);
  workers_gone();
}

void Engine::fail(WorkerId worker, TimeNs restart) {
  core_.fleet.fail(worker, restart, core_.now);
  workers_gone();
}

void Engine::workers_gone() {
  settle();
  rows_->find_ways();
  settle();
}

void Engine::advance(TimeNs until) {
  need(until >= core_.now && until < kFar, "until: time does not go back, and lies within 2^61 ns");
  run(until);
  core_.now = until;
  feed_.passed(until);
}

void Engine::finish() {
  run(kNever);
  rows_->give_up();
  settle();
  feed_.passed(core_.now);
}

// Handles everything due before `until`, in the order of the header.
void Engine::run(TimeNs until) {
  TimeNs& now = core_.now;
  dispatch::Scheduler& scheduler = core_.scheduler;
  Fleet& fleet = core_.fleet;
  for (;;) {
    const TimeNs worker = fleet.steps.next();
    const TimeNs arrival = feed_.next();
    const TimeNs end_known = returns_.next();
    const TimeNs join = fleet.next_join();
    const TimeNs expiry = expires_ ? std::max(scheduler.next_deadline(), now) : kNever;
    const TimeNs at = std::min({worker, arrival, end_known, join, expiry});
    if (at >= until) return;
    rows_->pass(at);
    now = at;
    if (worker == at) {
      step(fleet.steps.worker());
    } else if (end_known == at) {
      if (rows_->goes_on()) scheduler.hold();  // rows that go on may go as batches
      do answer(returns_.take());
      while (rows_->goes_on() && returns_.next() == at);
      scheduler.release(now, core_.actions);
    } else if (join == at) {
      fleet.join(now);
    } else if (expiry == at) {
      scheduler.expire(now, core_.actions);
    } else {
      arrive(feed_.take());
    }
    settle();
  }
}

void Engine::arrive(const Feed::Arrival& arrival) {
  const Slot slot = core_.requests.take(core_.now, arrival.length, arrival.variant);
  count_length(by_length_, arrival.length);
  core_.accounts.arrived(core_.requests[slot]);
  rows_->arrive(slot);
}

// A batch has ended, or a row has reached an idle worker.
void Engine::step(WorkerId worker) {
  const std::vector<Slot>& ended = core_.fleet.step(worker, core_.now);
  if (ended.empty()) return;
  core_.accounts.executed(core_.fleet[worker].begun, ended.size());
  if (rows_->goes_on()) core_.scheduler.hold();
  for (const Slot slot : ended) {
    if (core_.options.hop_back == 0) {
      answer(slot);
    } else {
      core_.requests[slot].returning = true;
      returns_.add(core_.now + core_.options.hop_back, slot);
    }
  }
  if (rows_->goes_on()) core_.scheduler.release(core_.now, core_.actions);
}

// The scheduler learns that a request was executed.
void Engine::answer(Slot slot) {
  const WorkerId worker = core_.requests[slot].worker;
  core_.scheduler.finish(core_.requests[slot].handle, dispatch::Verdict::kAnswered, core_.now, core_.actions);
  rows_->answered(slot);
  core_.fleet.answered(worker, core_.now);
}

// Carries out the scheduler's decisions, then starts the workers that got rows. Runs at the end of every event.
void Engine::settle() {
  for (std::size_t i = 0; i < core_.actions.size(); ++i) {  // NOLINT(modernize-loop-convert): retry() appends
    const dispatch::Action action = core_.actions[i];       // a copy, for the same reason
    const auto slot = static_cast<Slot>(action.tag);
    if (action.kind == dispatch::ActionKind::kStart) {
      Request& request = core_.requests[slot];
      request.worker = core_.fleet.at(action.instance);
      request.demoted = action.demoted;
      request.handle = action.handle;
      core_.fleet.send(request.worker, {slot, core_.now + core_.options.hop_out, action.runtime, action.batch});
    } else if (action.kind == dispatch::ActionKind::kExpired) {
      rows_->unanswered(slot, Outcome::kExpired, flow::Reason::kDeadline);
    } else {
      lost(slot);
    }
  }
  core_.actions.clear();
  core_.fleet.begin(core_.now);
}

void Engine::lost(Slot slot) {
  Request& request = core_.requests[slot];
  if (request.returning) return;  // its answer is on the way
  if (request.lost++ < core_.options.retries) {
    request.begun = -1;
    // The instance is gone: nothing to keep off.
    core_.scheduler.retry(request.handle, kNone, core_.now, core_.actions);
    if (core_.scheduler.state(request.handle) != dispatch::RequestState::kGone) core_.accounts.retried(request);
    return;
  }
  core_.scheduler.abandon(request.handle);
  rows_->unanswered(slot, Outcome::kFailed, flow::Reason::kStageFailed);
}

const std::vector<std::int64_t>& Engine::arrivals_by_length(dispatch::VariantId variant) const {
  need(roots_ != nullptr && variant < roots_->totals.by_length.size(), "variant: there is no pipeline with it");
  return roots_->totals.by_length[variant];
}

WorkerView Engine::worker(WorkerId worker) const {
  need(worker < workers(), "worker: there is no " + std::to_string(worker));
  const Worker& w = core_.fleet[worker];
  std::size_t waiting = w.inbox.size();
  if (w.instance != kNone) waiting += static_cast<std::size_t>(core_.scheduler.view(w.instance).queued);
  return {.runtime = w.runtime,
          .state = w.state,
          .waiting = static_cast<std::int32_t>(waiting),
          .executing = static_cast<std::int32_t>(w.batch.size()),
          .since = w.since,
          .busy = w.busy + (w.batch.empty() ? 0 : core_.now - w.begun),
          .served = w.served};
}

RuntimeView Engine::runtime(RuntimeId runtime) const {
  core_.fleet.need_runtime(runtime);
  return core_.fleet.runtime(runtime).view;
}

}  // namespace arlo::simulate
