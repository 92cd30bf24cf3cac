#include "simulate/fleet.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "dispatch/types.h"
#include "simulate/checks.h"

namespace arlo::simulate {

using dispatch::kNone;

RuntimeId Fleet::add_runtime(const RuntimeOptions& runtime) {
  need(runtime.inflight_limit >= 1, "inflight_limit: " + std::to_string(runtime.inflight_limit) + " is not at least 1");
  dispatch::validate(runtime.spec);
  dispatch::RuntimeSpec real = runtime.spec;
  if (!runtime.truth.empty()) real.latency = runtime.truth;
  const ExecutionTimes times(real);  // throws before anything is changed
  const RuntimeId id = scheduler_.add_runtime(runtime.spec);
  runtimes_.push_back(
      {times, runtime.spec.max_length, runtime.spec.max_batch, runtime.inflight_limit, runtime.spec.dynamic, {}, {}});
  runtimes_.back().longest.at(runtime.spec.variant) = runtime.spec.max_length;
  return id;
}

RuntimeId Fleet::add_bundle(const std::vector<RuntimeId>& runtimes, std::int32_t inflight_limit) {
  need(inflight_limit >= 1, "inflight_limit: " + std::to_string(inflight_limit) + " is not at least 1");
  const RuntimeId id = scheduler_.add_bundle(runtimes);
  Runtime longest = runtimes_[runtimes.front()];
  for (const RuntimeId runtime : runtimes) {
    if (runtimes_[runtime].max_length > longest.max_length) longest = runtimes_[runtime];
  }
  for (const RuntimeId runtime : runtimes) {
    for (std::size_t v = 0; v < longest.longest.size(); ++v) {
      longest.longest.at(v) = std::max(longest.longest.at(v), runtimes_[runtime].longest.at(v));
    }
  }
  longest.inflight_limit = inflight_limit;
  longest.view = {};
  runtimes_.push_back(std::move(longest));
  return id;
}

WorkerId Fleet::add_worker(RuntimeId runtime, TimeNs at, TimeNs now) {
  need_runtime(runtime);
  need(at >= now && at < kFar, "at: a worker starts now or later, within 2^61 ns");
  const auto id = static_cast<WorkerId>(workers_.size());
  workers_.emplace_back();
  steps.add_worker();
  workers_.back().runtime = runtime;
  workers_.back().since = now;
  joins_.add(workers_.back(), id, at);
  return id;
}

void Fleet::replace(WorkerId id, RuntimeId runtime, TimeNs delay, TimeNs now) {
  Worker& worker = present(id);
  need_runtime(runtime);
  need_duration(delay, "delay");
  if (worker.state == WorkerState::kStarting) {
    worker.runtime = runtime;
    joins_.add(worker, id, now + delay);
    return;
  }
  worker.load_next = true;
  worker.next_runtime = runtime;
  worker.next_delay = delay;
  drain(id, now);
}

void Fleet::remove(WorkerId id, TimeNs now) {
  Worker& worker = present(id);
  if (worker.state == WorkerState::kStarting) {
    become(worker, WorkerState::kGone, now);
    worker.join = 0;
    return;
  }
  worker.load_next = false;
  drain(id, now);
}

void Fleet::fail(WorkerId id, TimeNs restart, TimeNs now) {
  Worker& worker = present(id);
  if (restart != kNever) need_duration(restart, "restart");
  const bool drained = worker.state == WorkerState::kDraining;
  if (worker.state != WorkerState::kStarting) {
    if (!worker.batch.empty()) count_busy(worker, now - worker.begun);
    worker.batch.clear();
    worker.inbox.clear();
    steps.unschedule(worker, id);
    scheduler_.leave(std::exchange(worker.instance, kNone), now, actions_);
  }
  if (drained && worker.load_next) worker.runtime = worker.next_runtime;
  worker.join = 0;
  if (restart == kNever || (drained && !worker.load_next)) {
    become(worker, WorkerState::kGone, now);
  } else {
    become(worker, WorkerState::kStarting, now);
    joins_.add(worker, id, now + restart);
  }
}

void Fleet::slow(WorkerId id, double factor) {
  need_factor(factor, "factor");
  present(id).slow = factor;
}

void Fleet::join(TimeNs now) {
  const WorkerId id = joins_.take();
  Worker& worker = workers_[id];
  become(worker, WorkerState::kServing, now);
  worker.instance = scheduler_.join(worker.runtime, runtimes_[worker.runtime].inflight_limit, now, actions_);
  if (worker.instance >= by_instance_.size()) by_instance_.resize(worker.instance + 1);
  by_instance_[worker.instance] = id;
}

void Fleet::answered(WorkerId id, TimeNs now) {
  const Worker& worker = workers_[id];
  const bool drains = worker.state == WorkerState::kDraining && worker.instance != kNone;
  if (drains && !scheduler_.present(worker.instance)) emptied(id, now);
}

void Fleet::send(WorkerId id, Inbox::Row row) {
  workers_[id].inbox.push(row);
  touch(id);
}

void Fleet::touch(WorkerId id) {
  if (std::exchange(workers_[id].touched, true)) return;
  touched_.push_back(id);
}

const std::vector<Slot>& Fleet::step(WorkerId id, TimeNs now) {
  Worker& worker = workers_[id];
  touch(id);
  ended_.clear();
  if (worker.batch.empty() || worker.ends != now) return ended_;
  count_busy(worker, worker.ends - worker.begun);
  ++runtimes_[worker.executes].view.batches;
  worker.served += worker.batch.size();
  ended_.swap(worker.batch);
  return ended_;
}

void Fleet::begin(TimeNs now) {
  for (const WorkerId id : touched_) {
    workers_[id].touched = false;
    begin(id, now);
  }
  touched_.clear();
}

// An idle worker takes the rows that have reached it, or waits for the first that is on its way.
void Fleet::begin(WorkerId id, TimeNs now) {
  Worker& worker = workers_[id];
  if (!worker.batch.empty()) return;
  if (worker.inbox.empty()) {
    steps.unschedule(worker, id);
    return;
  }
  if (worker.inbox.front().ready > now) {
    steps.schedule(worker, id, worker.inbox.front().ready);
    return;
  }
  const Inbox::Row first = worker.inbox.front();
  const Runtime& runtime = runtimes_[first.runtime];
  worker.executes = first.runtime;
  std::int32_t longest = 1;
  do {
    const Slot slot = worker.inbox.front().slot;
    worker.inbox.pop();
    worker.batch.push_back(slot);
    longest = std::max(longest, requests_[slot].length);
  } while (!worker.inbox.empty() && joins(worker.inbox.front(), first, worker.batch.size(), now));
  TimeNs took = runtime.times.of(longest, worker.batch.size());
  const double factor = requests_.noise(worker.batch.front()) * worker.slow;
  if (factor != 1) took = std::llround(std::min(static_cast<double>(took) * factor, static_cast<double>(kFar)));
  took = std::min(took, std::max<TimeNs>(kFar - now, 0));  // time ends there
  for (const Slot slot : worker.batch) {
    Request& request = requests_[slot];
    request.begun = now;
    request.executed = took;
    request.runtime = worker.executes;
    request.computed = runtime.dynamic ? longest : runtime.max_length;
  }
  worker.begun = now;
  worker.ends = now + took;
  steps.schedule(worker, id, worker.ends);
}

// Whether the next row at a worker is executed with the first one.
bool Fleet::joins(const Inbox::Row& next, const Inbox::Row& first, std::size_t rows, TimeNs now) const {
  if (batching_) return first.batch != kNone && next.batch == first.batch;
  const auto most = static_cast<std::size_t>(runtimes_[first.runtime].max_batch);
  return rows < most && next.ready <= now && next.runtime == first.runtime;
}

void Fleet::count_busy(Worker& worker, TimeNs took) {
  worker.busy += took;
  runtimes_[worker.executes].view.busy += took;
}

void Fleet::need_runtime(RuntimeId runtime) const {
  need(runtime < runtimes_.size(), "runtime: there is no " + std::to_string(runtime));
}

Worker& Fleet::present(WorkerId id) {
  need(id < workers_.size(), "worker: there is no " + std::to_string(id));
  need(workers_[id].state != WorkerState::kGone, "worker: " + std::to_string(id) + " is gone");
  return workers_[id];
}

void Fleet::drain(WorkerId id, TimeNs now) {
  Worker& worker = workers_[id];
  if (worker.state == WorkerState::kDraining) return;
  become(worker, WorkerState::kDraining, now);
  if (scheduler_.drain(worker.instance, now, actions_)) emptied(id, now);
}

void Fleet::emptied(WorkerId id, TimeNs now) {
  Worker& worker = workers_[id];
  worker.instance = kNone;
  if (!worker.load_next) {
    become(worker, WorkerState::kGone, now);
    return;
  }
  worker.runtime = worker.next_runtime;
  become(worker, WorkerState::kStarting, now);
  joins_.add(worker, id, now + worker.next_delay);
}

}  // namespace arlo::simulate
