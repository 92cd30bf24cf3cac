#include "simulate/engine.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

#include "dispatch/indexed_heap.h"
#include "dispatch/validate.h"
#include "simulate/accounts.h"
#include "simulate/worker.h"

namespace arlo::simulate {
namespace {

using dispatch::Action;
using dispatch::ActionKind;
using dispatch::Actions;
using dispatch::InstanceId;
using dispatch::kNone;

constexpr TimeNs kFar = TimeNs{1} << 61;  // the scheduler's range of times

void need(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

void need_duration(TimeNs value, const char* field, TimeNs least = 0) {
  need(value >= least && value < kFar,
       std::string(field) + ": " + std::to_string(value) + " is not in " + std::to_string(least) + " to 2^61 ns");
}

// Large enough for everything that is slow, and no execution time leaves the range of times because of it.
void need_factor(double value, const char* field) {
  need(std::isfinite(value) && value > 0 && value <= 1e6,
       std::string(field) + ": " + std::to_string(value) + " is not above 0 and at most 1e6");
}

const Options& checked(const Options& options) {
  need_duration(options.slo, "slo", 1);
  if (options.timeout != kNever) need_duration(options.timeout, "timeout", 1);
  need_duration(options.overhead, "overhead");
  need_duration(options.hop_out, "hop_out");
  need_duration(options.hop_back, "hop_back");
  need_duration(options.warmup, "warmup");
  need(options.retries >= 0, "retries: " + std::to_string(options.retries) + " is not at least 0");
  need(options.noise.size() <= (1U << 20), "noise: more than 2^20 quantiles");
  for (const double factor : options.noise) need_factor(factor, "noise");
  return options;
}

// splitmix64: a good 64-bit mix of a counter.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace

class Engine::Impl {
 public:
  explicit Impl(const Options& options)
      : options_(checked(options)), scheduler_(options.dispatch), accounts_(options.warmup, options.record) {}

  RuntimeId add_runtime(const RuntimeOptions& runtime) {
    need(runtime.inflight_limit >= 1,
         "inflight_limit: " + std::to_string(runtime.inflight_limit) + " is not at least 1");
    dispatch::validate(runtime.spec);
    dispatch::RuntimeSpec real = runtime.spec;
    if (!runtime.truth.empty()) real.latency = runtime.truth;
    const ExecutionTimes times(real);  // throws before anything is changed
    const RuntimeId id = scheduler_.add_runtime(runtime.spec);
    runtimes_.push_back(
        {times, runtime.spec.max_length, runtime.spec.max_batch, runtime.inflight_limit, runtime.spec.dynamic, {}});
    return id;
  }

  // --- the caller's acts

  WorkerId add_worker(RuntimeId runtime, TimeNs at) {
    need_runtime(runtime);
    need(at >= now_ && at < kFar, "at: a worker starts now or later, within 2^61 ns");
    const auto id = static_cast<WorkerId>(workers_.size());
    workers_.emplace_back();
    positions_.push_back(0);
    workers_.back().runtime = runtime;
    workers_.back().since = now_;
    join_at(id, at);
    return id;
  }

  void replace(WorkerId id, RuntimeId runtime, TimeNs delay) {
    Worker& worker = present(id);
    need_runtime(runtime);
    need_duration(delay, "delay");
    if (worker.state == WorkerState::kStarting) {
      worker.runtime = runtime;
      join_at(id, now_ + delay);
      return;
    }
    worker.load_next = true;
    worker.next_runtime = runtime;
    worker.next_delay = delay;
    drain(id);
  }

  void remove(WorkerId id) {
    Worker& worker = present(id);
    if (worker.state == WorkerState::kStarting) {
      become(worker, WorkerState::kGone);
      worker.join = 0;
      return;
    }
    worker.load_next = false;
    drain(id);
  }

  void fail(WorkerId id, TimeNs restart) {
    Worker& worker = present(id);
    if (restart != kNever) need_duration(restart, "restart");
    const bool drained = worker.state == WorkerState::kDraining;
    if (worker.state != WorkerState::kStarting) {
      if (!worker.batch.empty()) count_busy(worker, now_ - worker.begun);
      worker.batch.clear();
      worker.inbox.clear();
      unschedule(id);
      const InstanceId instance = std::exchange(worker.instance, kNone);
      scheduler_.leave(instance, now_, actions_);
    }
    if (drained && worker.load_next) worker.runtime = worker.next_runtime;
    worker.join = 0;
    if (restart == kNever || (drained && !worker.load_next)) {
      become(worker, WorkerState::kGone);
    } else {
      become(worker, WorkerState::kStarting);
      join_at(id, now_ + restart);
    }
    settle();
  }

  void slow(WorkerId id, double factor) {
    need_factor(factor, "factor");
    present(id).slow = factor;
  }

  // --- time

  void feed(std::span<const TimeNs> arrived, std::span<const std::int32_t> length) {
    need(arrived.size() == length.size(), "arrived and length: not equally many");
    TimeNs last = fed_until_;
    for (const TimeNs at : arrived) {
      need(at >= last, "arrived: times must ascend, from now and from what was fed before");
      last = at;
    }
    need(last < kFar, "arrived: times must lie within 2^61 ns");
    if (next_ > 0) {  // give back what is consumed
      arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(next_));
      length_.erase(length_.begin(), length_.begin() + static_cast<std::ptrdiff_t>(next_));
      next_ = 0;
    }
    arrived_.insert(arrived_.end(), arrived.begin(), arrived.end());
    length_.insert(length_.end(), length.begin(), length.end());
    fed_until_ = last;
  }

  void advance(TimeNs until) {
    need(until >= now_ && until < kFar, "until: time does not go back, and lies within 2^61 ns");
    run(until);
    now_ = until;
    fed_until_ = std::max(fed_until_, until);
  }

  void finish() {
    run(kNever);
    for (Slot slot = 0; slot < requests_.size(); ++slot) {  // parked for ever
      Request& request = requests_[slot];
      if (!request.present) continue;
      scheduler_.cancel(request.handle, now_, actions_);
      end(slot, Outcome::kFailed);
    }
    settle();
    fed_until_ = std::max(fed_until_, now_);
  }

  [[nodiscard]] std::int32_t waiting_at(const Worker& worker) const {
    std::size_t count = worker.inbox.size();
    if (worker.instance != kNone) count += static_cast<std::size_t>(scheduler_.view(worker.instance).queued);
    return static_cast<std::int32_t>(count);
  }

  Options options_;
  dispatch::Scheduler scheduler_;
  TimeNs now_ = 0;
  Accounts accounts_;
  std::vector<std::int64_t> by_length_;
  std::vector<Worker> workers_;

  struct Runtime {
    ExecutionTimes times;
    std::int32_t max_length;
    std::int32_t max_batch;
    std::int32_t inflight_limit;
    bool dynamic;
    RuntimeView view;
  };
  std::vector<Runtime> runtimes_;

  Worker& present(WorkerId id) {
    need(id < workers_.size(), "worker: there is no " + std::to_string(id));
    need(workers_[id].state != WorkerState::kGone, "worker: " + std::to_string(id) + " is gone");
    return workers_[id];
  }

  void need_runtime(RuntimeId runtime) const {
    need(runtime < runtimes_.size(), "runtime: there is no " + std::to_string(runtime));
  }

 private:
  struct Join {
    TimeNs at;
    std::uint64_t number;
    WorkerId worker;
    bool operator>(const Join& other) const { return std::pair(at, number) > std::pair(other.at, other.number); }
  };
  struct End {
    TimeNs at;
    Slot slot;
  };

  // Handles everything due before `until`, in the order of the header.
  void run(TimeNs until) {
    const bool expires = options_.timeout != kNever;
    for (;;) {
      const TimeNs worker = heap_.empty() ? kNever : static_cast<TimeNs>(heap_.top().key);
      const TimeNs arrival = next_ == arrived_.size() ? kNever : arrived_[next_];
      const TimeNs end_known = ends_.empty() ? kNever : ends_.front().at;
      const TimeNs join = next_join();
      const TimeNs expiry = expires ? std::max(scheduler_.next_deadline(), now_) : kNever;
      const TimeNs at = std::min({worker, arrival, end_known, join, expiry});
      if (at >= until) return;
      now_ = at;
      if (worker == at) {
        step(heap_.top().id);
      } else if (end_known == at) {
        const Slot slot = ends_.front().slot;
        ends_.pop_front();
        answer(slot);
      } else if (join == at) {
        const WorkerId joining = joins_.top().worker;
        joins_.pop();
        enter(joining);
      } else if (expiry == at) {
        scheduler_.expire(now_, actions_);
      } else {
        arrive(length_[next_++]);
      }
      settle();
    }
  }

  // Joins that were called off are not events.
  TimeNs next_join() {
    while (!joins_.empty() && workers_[joins_.top().worker].join != joins_.top().number) joins_.pop();
    return joins_.empty() ? kNever : joins_.top().at;
  }

  void arrive(std::int32_t length) {
    Slot slot;
    if (free_.empty()) {
      slot = static_cast<Slot>(requests_.size());
      requests_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Request& request = requests_[slot];
    request = Request{};
    request.arrived = now_;
    request.number = arrivals_++;
    request.length = length;
    request.present = true;
    const auto index = static_cast<std::size_t>(std::clamp(length, 0, dispatch::kMaxLength));
    if (index >= by_length_.size()) by_length_.resize(index + 1);
    ++by_length_[index];
    accounts_.arrived(now_, length);
    // What it aims at: `overhead` comes after the worker's answer. Clients that wait for ever want every answer.
    const bool limited = options_.timeout != kNever;
    const TimeNs due = limited ? now_ + std::max<TimeNs>(options_.slo - options_.overhead, 0) : kNever;
    const TimeNs deadline = limited ? now_ + std::max<TimeNs>(options_.timeout - options_.overhead, 0) : kNever;
    const dispatch::Admitted admitted =
        scheduler_.arrive(slot, {.length = length, .due = due, .deadline = deadline}, now_, actions_);
    if (admitted.handle == kNone) {
      end(slot, Outcome::kRejected);
    } else {
      request.handle = admitted.handle;
    }
  }

  // A batch has ended, or a row has reached an idle worker.
  void step(WorkerId id) {
    Worker& worker = workers_[id];
    touch(id);
    if (worker.batch.empty() || worker.ends != now_) return;
    count_busy(worker, worker.ends - worker.begun);
    ++runtimes_[worker.runtime].view.batches;
    worker.served += worker.batch.size();
    ended_.swap(worker.batch);
    worker.batch.clear();
    for (const Slot slot : ended_) {
      if (options_.hop_back == 0) {
        answer(slot);
      } else {
        requests_[slot].returning = true;
        ends_.push_back({now_ + options_.hop_back, slot});
      }
    }
    ended_.clear();
  }

  // The scheduler learns that a request was executed, and the client gets its answer.
  void answer(Slot slot) {
    Request& request = requests_[slot];
    const WorkerId id = request.worker;
    scheduler_.finish(request.handle, dispatch::Verdict::kAnswered, now_, actions_);
    const TimeNs latency = now_ - request.arrived + options_.overhead;
    Outcome outcome = latency <= options_.slo ? Outcome::kOnTime : Outcome::kLate;
    if (latency > options_.timeout) outcome = Outcome::kExpired;
    if (outcome != Outcome::kExpired && accounts_.answered(request, latency, outcome == Outcome::kOnTime)) {
      RuntimeView& view = runtimes_[request.runtime].view;
      ++view.served;
      view.demoted += request.demoted ? 1 : 0;
    }
    end(slot, outcome, latency);
    Worker& worker = workers_[id];
    if (worker.state == WorkerState::kDraining && worker.instance != kNone && !scheduler_.present(worker.instance)) {
      emptied(id);
    }
  }

  // A request leaves the system.
  void end(Slot slot, Outcome outcome, TimeNs latency = -1) {
    Request& request = requests_[slot];
    accounts_.ended(request, outcome, latency);
    request.present = false;
    free_.push_back(slot);
  }

  void count_busy(Worker& worker, TimeNs took) {
    worker.busy += took;
    runtimes_[worker.runtime].view.busy += took;
  }

  // Carries out the scheduler's decisions, then lets the workers that got something begin. At the end of every event.
  void settle() {
    for (std::size_t i = 0; i < actions_.size(); ++i) {  // NOLINT(modernize-loop-convert): retry() appends
      const Action action = actions_[i];                 // a copy, for the same reason
      const auto slot = static_cast<Slot>(action.tag);
      if (action.kind == ActionKind::kStart) {
        const WorkerId id = by_instance_[action.instance];
        requests_[slot].worker = id;
        requests_[slot].demoted = action.demoted;
        requests_[slot].handle = action.handle;
        workers_[id].inbox.push({slot, now_ + options_.hop_out});
        touch(id);
      } else if (action.kind == ActionKind::kExpired) {
        end(slot, Outcome::kExpired);
      } else {
        lost(slot);
      }
    }
    actions_.clear();
    for (const WorkerId id : touched_) {
      workers_[id].touched = false;
      begin(id);
    }
    touched_.clear();
  }

  void lost(Slot slot) {
    Request& request = requests_[slot];
    if (request.returning) return;  // its answer is on the way
    if (request.lost++ < options_.retries) {
      request.begun = -1;
      // The instance is gone: nothing to keep off.
      scheduler_.retry(request.handle, kNone, now_, actions_);
      if (scheduler_.state(request.handle) != dispatch::RequestState::kGone) accounts_.retried(request);
      return;
    }
    scheduler_.abandon(request.handle);
    end(slot, Outcome::kFailed);
  }

  void touch(WorkerId id) {
    if (workers_[id].touched) return;
    workers_[id].touched = true;
    touched_.push_back(id);
  }

  // An idle worker takes the rows that have reached it, or waits for the first that is on its way.
  void begin(WorkerId id) {
    Worker& worker = workers_[id];
    if (!worker.batch.empty()) return;
    if (worker.inbox.empty()) {
      unschedule(id);
      return;
    }
    if (worker.inbox.front().ready > now_) {
      schedule(id, worker.inbox.front().ready);
      return;
    }
    const Runtime& runtime = runtimes_[worker.runtime];
    std::int32_t longest = 1;
    do {
      const Slot slot = worker.inbox.front().slot;
      worker.inbox.pop();
      worker.batch.push_back(slot);
      longest = std::max(longest, requests_[slot].length);
    } while (std::ssize(worker.batch) < runtime.max_batch && !worker.inbox.empty() &&
             worker.inbox.front().ready <= now_);
    TimeNs took = runtime.times.of(longest, worker.batch.size());
    const double factor = noise(requests_[worker.batch.front()]) * worker.slow;
    if (factor != 1) {
      took = std::llround(std::min(static_cast<double>(took) * factor, static_cast<double>(kFar)));
    }
    took = std::min(took, std::max<TimeNs>(kFar - now_, 0));  // time ends there
    for (const Slot slot : worker.batch) {
      Request& request = requests_[slot];
      request.begun = now_;
      request.executed = took;
      request.runtime = worker.runtime;
      request.computed = runtime.dynamic ? longest : runtime.max_length;
    }
    worker.begun = now_;
    worker.ends = now_ + took;
    schedule(id, worker.ends);
  }

  // The same factor for a request whatever the policy, so that policies are compared under equal luck.
  [[nodiscard]] double noise(const Request& request) const {
    if (options_.noise.empty()) return 1;
    const auto attempt = static_cast<std::uint64_t>(request.lost);
    const std::uint64_t random = mixed(mixed(options_.seed) ^ (request.number << 8 | attempt));
    return options_.noise[static_cast<std::size_t>(((random >> 32) * options_.noise.size()) >> 32)];
  }

  void drain(WorkerId id) {
    Worker& worker = workers_[id];
    if (worker.state == WorkerState::kDraining) return;
    become(worker, WorkerState::kDraining);
    if (scheduler_.drain(worker.instance, now_, actions_)) emptied(id);
    settle();
  }

  // The last request of a draining worker is answered.
  void emptied(WorkerId id) {
    Worker& worker = workers_[id];
    worker.instance = kNone;
    if (!worker.load_next) {
      become(worker, WorkerState::kGone);
      return;
    }
    worker.runtime = worker.next_runtime;
    become(worker, WorkerState::kStarting);
    join_at(id, now_ + worker.next_delay);
  }

  void join_at(WorkerId id, TimeNs at) {
    workers_[id].join = ++joins_made_;
    joins_.push({at, joins_made_, id});
  }

  void enter(WorkerId id) {
    Worker& worker = workers_[id];
    become(worker, WorkerState::kServing);
    const std::int32_t limit = runtimes_[worker.runtime].inflight_limit;
    worker.instance = scheduler_.join(worker.runtime, limit, now_, actions_);
    if (worker.instance >= by_instance_.size()) by_instance_.resize(worker.instance + 1);
    by_instance_[worker.instance] = id;
  }

  void become(Worker& worker, WorkerState state) const {
    worker.state = state;
    worker.since = now_;
  }

  void schedule(WorkerId id, TimeNs at) {
    const auto key = static_cast<std::uint64_t>(at);
    if (workers_[id].scheduled) {
      heap_.update(positions_, id, key);
    } else {
      heap_.push(positions_, id, key);
      workers_[id].scheduled = true;
    }
  }

  void unschedule(WorkerId id) {
    if (workers_[id].scheduled) heap_.erase(positions_, id);
    workers_[id].scheduled = false;
  }

  std::vector<Request> requests_;
  std::vector<Slot> free_;
  std::uint64_t arrivals_ = 0;
  std::vector<WorkerId> by_instance_;
  dispatch::IndexedHeap heap_;  // workers by their next event
  dispatch::HeapPositions positions_;
  std::deque<End> ends_;  // hop_back is one for all, so they come in order
  std::priority_queue<Join, std::vector<Join>, std::greater<>> joins_;
  std::uint64_t joins_made_ = 0;
  std::vector<TimeNs> arrived_;  // fed; consumed up to next_
  std::vector<std::int32_t> length_;
  std::size_t next_ = 0;
  TimeNs fed_until_ = 0;
  Actions actions_;
  std::vector<WorkerId> touched_;
  std::vector<Slot> ended_;
};

Engine::Engine(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

RuntimeId Engine::add_runtime(const RuntimeOptions& runtime) { return impl_->add_runtime(runtime); }
WorkerId Engine::add_worker(RuntimeId runtime, TimeNs at) { return impl_->add_worker(runtime, at); }
void Engine::replace(WorkerId worker, RuntimeId runtime, TimeNs delay) { impl_->replace(worker, runtime, delay); }
void Engine::remove(WorkerId worker) { impl_->remove(worker); }
void Engine::fail(WorkerId worker, TimeNs restart) { impl_->fail(worker, restart); }
void Engine::slow(WorkerId worker, double factor) { impl_->slow(worker, factor); }
void Engine::feed(std::span<const TimeNs> arrived, std::span<const std::int32_t> length) {
  impl_->feed(arrived, length);
}
void Engine::advance(TimeNs until) { impl_->advance(until); }
void Engine::finish() { impl_->finish(); }
TimeNs Engine::now() const { return impl_->now_; }
const Totals& Engine::totals() const { return impl_->accounts_.totals; }
const Histogram& Engine::latency() const { return impl_->accounts_.latency; }
const std::vector<std::int64_t>& Engine::arrivals_by_length() const { return impl_->by_length_; }
std::size_t Engine::workers() const { return impl_->workers_.size(); }
std::size_t Engine::runtimes() const { return impl_->runtimes_.size(); }
std::int32_t Engine::queued() const { return impl_->scheduler_.queued(); }
std::int32_t Engine::in_flight() const { return impl_->scheduler_.in_flight(); }
const Columns& Engine::columns() const { return impl_->accounts_.columns; }
TimeNs Engine::recent_bucket(std::size_t bucket) { return Buckets<7>::lower(bucket); }

Recent Engine::take_recent(std::vector<std::uint64_t>& counts) { return impl_->accounts_.take_recent(counts); }

WorkerView Engine::worker(WorkerId worker) const {
  need(worker < impl_->workers_.size(), "worker: there is no " + std::to_string(worker));
  const Worker& w = impl_->workers_[worker];
  const TimeNs running = w.batch.empty() ? 0 : impl_->now_ - w.begun;
  return {w.runtime,        w.state, impl_->waiting_at(w), static_cast<std::int32_t>(w.batch.size()), w.since,
          w.busy + running, w.served};
}

RuntimeView Engine::runtime(RuntimeId runtime) const {
  impl_->need_runtime(runtime);
  return impl_->runtimes_[runtime].view;
}

}  // namespace arlo::simulate
