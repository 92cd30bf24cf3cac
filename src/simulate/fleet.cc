#include "simulate/fleet.h"

#include <algorithm>
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
