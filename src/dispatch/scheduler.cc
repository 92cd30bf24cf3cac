// The states of a request, in one place.
//
//                       arrive: room                       finish
//   (admitted) ───────────────────────────────► kStarted ──────────► kGone
//       │ arrive: no room                        ▲  │  ▲
//       ▼                        its turn comes  │  │  └─────────────┐ retry: room
//   kWaiting ────────────────────────────────────┘  │ leave          │
//       │  ▲                                        ▼                │
//       │  └───────────────────────────────────── kLost ─────────────┘
//       │        retry: no room (from kStarted too)   │ abandon, finish
//       ▼                                             ▼
//   kGone: expire, cancel, found dead               kGone
//
// A waiting request is in exactly one FIFO: of an instance it is *bound* to (r.instance is set), or of its ideal level
// (r.instance is kNone), where it is parked when no active instance fits, and otherwise waits for late binding.
//   leave   its instance: bound -> bound elsewhere, or parked.
//   drain   its instance: bound -> bound elsewhere when another active instance fits, and stays otherwise.
//           `late`: level FIFO -> bound to the draining instance when no active one fits any more.
//   join    parked, or bound elsewhere -> bound, started, or (`late`) simply no longer parked.
// A started request is in the `started` FIFO of its instance; a lost one is in none.
//
// Invariants between calls. An active instance with room has nothing bound. Under `late` no request waits while an
// instance of its home has room, unless it keeps off that instance. A draining instance has something outstanding.
// Outstanding requests, keys and heaps agree.
#include "dispatch/scheduler.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/deadlines.h"
#include "dispatch/policies/late/late.h"
#include "dispatch/level_fifos.h"
#include "dispatch/multi_level_queue.h"
#include "dispatch/request.h"
#include "dispatch/policies/rule.h"
#include "dispatch/policies/timed.h"
#include "dispatch/validate.h"

namespace arlo::dispatch {

class Scheduler::Impl {
 public:
  explicit Impl(const Options& options)
      : options_(options), timed_(options.policy == Policy::kEft || options.policy == Policy::kLate), queue_(timed_) {
    if (options.policy == Policy::kLate) {
      auto late = std::make_unique<Late>(lines_, requests_);
      late_ = late.get();
      rule_ = std::move(late);
    } else {
      rule_ = options.policy == Policy::kEft ? make_eft(requests_) : make_load_rule(options);
    }
  }

  RuntimeId add_runtime(RuntimeSpec spec) {
    validate(spec);
    const std::int32_t max_length = spec.max_length;
    if (options_.policy == Policy::kUniform && queue_.levels() == 1 && queue_.longest() != max_length) {
      throw std::invalid_argument("max_length: " + std::to_string(max_length) + " differs from " +
                                  std::to_string(queue_.longest()) + "; policy uniform takes one max_length only");
    }
    std::int32_t new_level = -1;
    const RuntimeId runtime = queue_.add_runtime(std::move(spec), &new_level);
    if (new_level >= 0) lines_.insert_level(requests_, new_level, max_length);
    return runtime;
  }

  InstanceId join(RuntimeId runtime, std::int32_t limit, TimeNs now, Actions& out) {
    if (runtime >= queue_.runtimes()) {
      throw std::invalid_argument("runtime: " + std::to_string(runtime) + " has not been added");
    }
    if (limit < 1) throw std::invalid_argument("inflight_limit: " + std::to_string(limit) + " is not at least 1");
    const InstanceId id = queue_.add_instance(runtime, limit);
    queue_.activate(id, rule_->key(queue_[id]));
    if (late_ != nullptr) {
      serve(id, now, out);
      return id;
    }
    for (const RequestHandle h : take_fitting(id)) bind_again(h, now, out);
    return id;
  }

  bool drain(InstanceId id, TimeNs now, Actions& out) {
    if (!queue_.present(id)) return true;
    Instance& x = queue_[id];
    if (x.state == InstanceState::kDraining) return false;
    x.state = InstanceState::kDraining;
    queue_.deactivate(id);
    RequestHandle next = kNone;
    for (RequestHandle h = x.waiting.head; h != kNone; h = next) {
      next = requests_[h].next;
      if (!fits_any(requests_[h].length)) continue;
      unbind(h);
      bind_again(h, now, out);
    }
    if (late_ != nullptr) bind_stranded(id, now);
    serve(id, now, out);
    if (late_ != nullptr) balance_all(now, out);
    return !queue_.present(id);
  }

  void leave(InstanceId id, TimeNs now, Actions& out) {
    if (!queue_.present(id)) return;
    Instance& x = queue_[id];
    if (x.state == InstanceState::kActive) queue_.deactivate(id);
    x.state = InstanceState::kDraining;  // not in a heap
    while (!x.started.empty()) {
      const RequestHandle h = x.started.head;
      release(h, now);
      requests_[h].state = RequestState::kLost;
      emit(ActionKind::kLost, h, id, x.level, out);
    }
    for (RequestHandle h = x.waiting.head; h != kNone; h = x.waiting.head) {
      unbind(h);
      bind_again(h, now, out);
    }
    queue_.remove_instance(id);
    if (late_ != nullptr) balance_all(now, out);
  }

  Admitted arrive(Tag tag, const Arrival& arrival, TimeNs now, Actions& out) {
    const auto [length, due, deadline, client] = arrival;
    if (length < 1 || length > queue_.longest()) return {Admission::kTooLong, kNone};
    const std::int32_t level = queue_.ideal(length);
    const bool may_wait = queued_ < options_.max_queued;
    const GroupIndex first = queue_.first_fitting(level);
    if (first == queue_.groups()) {
      if (!may_wait) return {Admission::kFull, kNone};
      const RequestHandle h = admit(tag, length, deadline);
      wait_in_line(h, level);
      return {Admission::kParked, h};
    }
    if (late_ != nullptr) return arrive_late(tag, length, level, now, deadline, out);
    const InstanceId id = queue_.head(rule_->pick(queue_, level, length, now)).id;
    if (!may_wait && !queue_[id].has_room()) return {Admission::kFull, kNone};
    const RequestHandle h = admit(tag, length, deadline);
    return {bind(h, id, now, out), h};
  }

  void finish(RequestHandle h, Verdict verdict, TimeNs now, Actions& out) {
    const RequestState state = requests_.state(h);
    if (state == RequestState::kLost) requests_.give_back(h);
    if (state != RequestState::kStarted) return;
    const InstanceId id = requests_[h].instance;
    if (verdict == Verdict::kAnswered) observe(requests_[h], queue_[id], now);
    release(h, now);
    requests_.give_back(h);
    serve(id, now, out);
  }

  bool cancel(RequestHandle h) {
    if (requests_.state(h) != RequestState::kWaiting) return false;
    remove_waiting(h);
    return true;
  }

  Admission retry(RequestHandle h, InstanceId avoid, TimeNs now, Actions& out) {
    const RequestState state = requests_.state(h);
    if (state != RequestState::kStarted && state != RequestState::kLost) return Admission::kTooLong;
    const InstanceId old = state == RequestState::kStarted ? requests_[h].instance : kNone;
    if (old != kNone) {
      release(h, now);
      refresh_key(old);
    }
    Request& r = requests_[h];
    r.rank = r.admission();
    r.avoid = avoid;
    Admission admission = Admission::kQueued;
    if (r.deadline <= now) {
      emit(ActionKind::kExpired, h, kNone, queue_.ideal(r.length), out);
      requests_.give_back(h);
    } else {
      admission = schedule(h, now, out);
    }
    if (old != kNone) serve(old, now, out);
    return requests_.state(h) == RequestState::kStarted ? Admission::kStarted : admission;
  }

  void abandon(RequestHandle h) {
    if (requests_.state(h) == RequestState::kLost) requests_.give_back(h);
  }

  void expire(TimeNs now, Actions& out) {
    for (RequestHandle h = deadlines_.pop(requests_, now); h != kNone; h = deadlines_.pop(requests_, now)) {
      expire_one(h, out);
    }
    if (late_ != nullptr && lines_.total() > 0) balance_all(now, out);
  }

  [[nodiscard]] TimeNs next_deadline() const { return queued_ == 0 ? kNever : deadlines_.next(); }
  [[nodiscard]] const MultiLevelQueue& queue() const { return queue_; }
  [[nodiscard]] std::int32_t queued() const { return queued_; }
  [[nodiscard]] std::int32_t in_flight() const { return in_flight_; }
  [[nodiscard]] RequestState state(RequestHandle h) const { return requests_.state(h); }

  [[nodiscard]] std::int32_t parked() const {
    std::int32_t parked = 0;
    for (std::int32_t l = queue_.levels() - 1; l >= 0 && queue_.home(l) == queue_.levels(); --l) {
      parked += lines_[l].count;
    }
    return parked;
  }

  [[nodiscard]] bool fits_any(std::int32_t length) const {
    return length >= 1 && length <= queue_.longest() && queue_.first_fitting(queue_.ideal(length)) != queue_.groups();
  }

 private:
  RequestHandle admit(Tag tag, std::int32_t length, TimeNs deadline) {
    const RequestHandle h = requests_.take();
    Request& r = requests_[h];
    r.tag = tag;
    r.deadline = deadline;
    r.rank = kFirstTry | admissions_++;
    r.instance = kNone;
    r.avoid = kNone;
    r.length = length;
    return h;
  }

  void emit(ActionKind kind, RequestHandle h, InstanceId id, std::int32_t level, Actions& out) const {
    const Request& r = requests_[h];
    out.push_back({kind, h, r.tag, id, level, level > queue_.ideal(r.length)});
  }

  // The key of an instance follows its load; a draining one has none.
  void refresh_key(InstanceId id) {
    const Instance& x = queue_[id];
    if (x.state == InstanceState::kActive) queue_.update(id, rule_->key(x));
  }

  void charge(Request& r, Instance& x, TimeNs now) {
    if (!timed_) return;
    r.share = timed::paced(x, queue_.cost(x.runtime).share(r.length));
    timed::add(x, r.share, now);
  }

  void observe(const Request& r, Instance& x, TimeNs now) {
    if (!timed_) return;
    const CostModel& cost = queue_.cost(x.runtime);
    if (!cost.batches()) timed::observe(x, cost.share(r.length), now);
  }

  // -- waiting ------------------------------------------------------------------------------------------------------

  void begin_wait(RequestHandle h) {
    requests_[h].state = RequestState::kWaiting;
    ++queued_;
    deadlines_.wait_begins(requests_, h);
  }

  void end_wait(RequestHandle h) {
    --queued_;
    deadlines_.wait_ends(requests_, h);
  }

  void wait_in_line(RequestHandle h, std::int32_t level) {
    requests_[h].instance = kNone;
    lines_.insert(requests_, level, h);
    begin_wait(h);
  }

  // Takes a waiting request out of its FIFO, for good.
  void remove_waiting(RequestHandle h) {
    if (requests_[h].instance == kNone) {
      lines_.erase(requests_, queue_.ideal(requests_[h].length), h);
    } else {
      unbind(h);
    }
    end_wait(h);
    requests_.give_back(h);
  }

  void expire_one(RequestHandle h, Actions& out) {
    emit(ActionKind::kExpired, h, kNone, queue_.ideal(requests_[h].length), out);
    remove_waiting(h);
  }

  // Out of its instance's FIFO; still counted as waiting.
  void unbind(RequestHandle h) {
    Request& r = requests_[h];
    Instance& x = queue_[r.instance];
    x.waiting.erase(requests_, h);
    --x.queued;
    if (timed_) timed::withdraw(x, r.share);
    refresh_key(r.instance);
    r.instance = kNone;
  }

  // -- starting and finishing ---------------------------------------------------------------------------------------

  // The request is charged to the instance already, and in no FIFO.
  void start(RequestHandle h, InstanceId id, Actions& out) {
    Request& r = requests_[h];
    Instance& x = queue_[id];
    r.state = RequestState::kStarted;
    r.instance = id;
    ++x.in_flight;
    ++in_flight_;
    x.started.push_back(requests_, h);
    emit(ActionKind::kStart, h, id, x.level, out);
  }

  // A started request no longer runs on its instance. The key is left to the caller.
  void release(RequestHandle h, TimeNs now) {
    Request& r = requests_[h];
    Instance& x = queue_[r.instance];
    x.started.erase(requests_, h);
    --x.in_flight;
    --in_flight_;
    if (timed_) timed::progress(x, r.share, now);
    r.instance = kNone;
  }

  // Starts what waits for an instance while it has room; then brings its key up to date, or lets it go.
  void serve(InstanceId id, TimeNs now, Actions& out) {
    Instance& x = queue_[id];
    while (x.has_room()) {
      RequestHandle h = x.waiting.head;
      if (h == kNone && late_ != nullptr && x.state == InstanceState::kActive) h = late_->next_for(queue_, id, now);
      if (h == kNone) break;
      Request& r = requests_[h];
      if (r.deadline <= now) {
        expire_one(h, out);
        continue;
      }
      if (r.instance == kNone) {
        lines_.erase(requests_, queue_.ideal(r.length), h);
        charge(r, x, now);
      } else {
        x.waiting.erase(requests_, h);
        --x.queued;
      }
      end_wait(h);
      start(h, id, out);
    }
    if (x.state == InstanceState::kActive) {
      queue_.update(id, rule_->key(x));
    } else if (x.outstanding() == 0) {
      queue_.remove_instance(id);
    }
  }

  // -- early binding ------------------------------------------------------------------------------------------------

  // A request that is in no FIFO and not counted as waiting.
  Admission bind(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
    Request& r = requests_[h];
    Instance& x = queue_[id];
    charge(r, x, now);
    if (x.has_room()) {
      start(h, id, out);
      queue_.update(id, rule_->key(x));
      return Admission::kStarted;
    }
    r.instance = id;
    ++x.queued;
    x.waiting.insert(requests_, h);
    begin_wait(h);
    queue_.update(id, rule_->key(x));
    return Admission::kQueued;
  }

  // A request that had to wait and is in no FIFO now (still counted as waiting) looks for a place.
  void bind_again(RequestHandle h, TimeNs now, Actions& out) {
    if (requests_[h].deadline <= now) {
      emit(ActionKind::kExpired, h, kNone, queue_.ideal(requests_[h].length), out);
      end_wait(h);
      requests_.give_back(h);
      return;
    }
    end_wait(h);
    schedule(h, now, out);
  }

  // Every request that waits, parked or bound to another instance, and that this one fits: out of its FIFO, still
  // counted as waiting, in order of rank. What was bound before this instance came would wait behind others for
  // nothing.
  std::vector<RequestHandle> take_fitting(InstanceId id) {
    std::vector<RequestHandle> found;
    const std::int32_t level = queue_[id].level;  // only parked requests are in the FIFOs, and those up to here fit
    for (RequestHandle h = lines_.front(requests_, 0, level); h != kNone; h = lines_.front(requests_, 0, level)) {
      lines_.erase(requests_, queue_.ideal(requests_[h].length), h);
      found.push_back(h);
    }
    const std::int32_t longest = queue_.level(level).max_length;
    for (InstanceId other = 0; other < queue_.ids_end(); ++other) {
      if (!queue_.present(other)) continue;
      RequestHandle next = kNone;
      for (RequestHandle h = queue_[other].waiting.head; h != kNone; h = next) {
        next = requests_[h].next;
        if (requests_[h].length > longest) continue;
        unbind(h);
        found.push_back(h);
      }
    }
    std::sort(found.begin(), found.end(),
              [this](RequestHandle a, RequestHandle b) { return requests_[a].rank < requests_[b].rank; });
    return found;
  }

  // A request of any history that is in no FIFO and not counted as waiting.
  Admission schedule(RequestHandle h, TimeNs now, Actions& out) {
    const std::int32_t level = queue_.ideal(requests_[h].length);
    if (queue_.first_fitting(level) == queue_.groups()) {
      wait_in_line(h, level);
      return Admission::kParked;
    }
    if (late_ != nullptr) {
      wait_in_line(h, level);
      balance(queue_.home(level), now, out);
      return Admission::kQueued;
    }
    return bind(h, pick_for(h, now), now, out);
  }

  // The instance that takes a request which may have one to avoid; kNone: none does now (`late`).
  InstanceId pick_for(RequestHandle h, TimeNs now) {
    const Request& r = requests_[h];
    const std::int32_t level = queue_.ideal(r.length);
    const InstanceId avoid = r.avoid;
    const bool hide = avoid != kNone && queue_.present(avoid) && queue_[avoid].state == InstanceState::kActive;
    if (hide) queue_.deactivate(avoid);
    const bool another = hide && queue_.first_fitting(level) != queue_.groups();
    if (hide && !another) queue_.activate(avoid, rule_->key(queue_[avoid]));
    const GroupIndex g = rule_->pick(queue_, level, r.length, now);
    const InstanceId id = g == queue_.groups() ? kNone : queue_.head(g).id;
    if (another) queue_.activate(avoid, rule_->key(queue_[avoid]));
    return id;
  }

  // -- late binding -------------------------------------------------------------------------------------------------

  Admitted arrive_late(Tag tag, std::int32_t length, std::int32_t level, TimeNs now, TimeNs deadline, Actions& out) {
    const std::int32_t home = queue_.home(level);
    if (lines_.front(requests_, queue_.lowest_at(home), home) == kNone) {
      const GroupIndex g = late_->pick(queue_, level, length, now);
      if (g == queue_.groups() && queued_ >= options_.max_queued) return {Admission::kFull, kNone};
      const RequestHandle h = admit(tag, length, deadline);
      if (g == queue_.groups()) {
        wait_in_line(h, level);
        return {Admission::kQueued, h};
      }
      const InstanceId id = queue_.head(g).id;
      charge(requests_[h], queue_[id], now);
      start(h, id, out);
      refresh_key(id);
      return {Admission::kStarted, h};
    }
    // It lines up, and the first in line may start for it; only if none does may the queue be too full.
    const RequestHandle h = admit(tag, length, deadline);
    wait_in_line(h, level);
    balance(home, now, out);
    if (requests_[h].state == RequestState::kStarted) return {Admission::kStarted, h};
    if (queued_ <= options_.max_queued) return {Admission::kQueued, h};
    remove_waiting(h);
    return {Admission::kFull, kNone};
  }

  // Starts requests of a home, first come first, while there is an instance for the first one.
  void balance(std::int32_t home, TimeNs now, Actions& out) {
    const std::int32_t lowest = queue_.lowest_at(home);
    for (RequestHandle h = lines_.front(requests_, lowest, home); h != kNone;
         h = lines_.front(requests_, lowest, home)) {
      Request& r = requests_[h];
      if (r.deadline <= now) {
        expire_one(h, out);
        continue;
      }
      const InstanceId id = pick_for(h, now);
      if (id == kNone) {  // what the first one keeps off may still have room for another
        if (may_serve(r.avoid)) serve(r.avoid, now, out);
        return;
      }
      lines_.erase(requests_, queue_.ideal(r.length), h);
      end_wait(h);
      charge(r, queue_[id], now);
      start(h, id, out);
      refresh_key(id);
    }
  }

  [[nodiscard]] bool may_serve(InstanceId id) const {
    return id != kNone && queue_.present(id) && queue_[id].state == InstanceState::kActive && queue_[id].has_room();
  }

  // The longest homes first: a longer request has fewer instances to go to.
  void balance_all(TimeNs now, Actions& out) {
    for (std::int32_t level = queue_.levels() - 1; level >= 0; --level) {
      if (queue_.active_in(level) > 0) balance(level, now, out);
    }
  }

  // Waiting requests that only the draining instance fits are bound to it.
  void bind_stranded(InstanceId id, TimeNs now) {
    Instance& x = queue_[id];
    for (std::int32_t level = x.level; level >= 0 && queue_.home(level) == queue_.levels(); --level) {
      while (!lines_[level].fifo.empty()) {
        const RequestHandle h = lines_[level].fifo.head;
        lines_.erase(requests_, level, h);
        charge(requests_[h], x, now);
        requests_[h].instance = id;
        x.waiting.insert(requests_, h);
        ++x.queued;
      }
    }
  }

  Options options_;
  bool timed_;
  MultiLevelQueue queue_;
  RequestSlab requests_;
  LevelFifos lines_;
  Deadlines deadlines_;
  std::unique_ptr<Rule> rule_;
  Late* late_ = nullptr;  // rule_, when it is that one
  std::uint64_t admissions_ = 0;
  std::int32_t queued_ = 0;
  std::int32_t in_flight_ = 0;
};

Scheduler::Scheduler(Options options) {
  validate(options);
  impl_ = std::make_unique<Impl>(options);
}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

RuntimeId Scheduler::add_runtime(const RuntimeSpec& spec) { return impl_->add_runtime(spec); }

InstanceId Scheduler::join(RuntimeId runtime, std::int32_t inflight_limit, TimeNs now, Actions& out) {
  return impl_->join(runtime, inflight_limit, now, out);
}

bool Scheduler::drain(InstanceId instance, TimeNs now, Actions& out) { return impl_->drain(instance, now, out); }

void Scheduler::leave(InstanceId instance, TimeNs now, Actions& out) { impl_->leave(instance, now, out); }

Admitted Scheduler::arrive(Tag tag, const Arrival& arrival, TimeNs now, Actions& out) {
  return impl_->arrive(tag, arrival, now, out);
}

void Scheduler::finish(RequestHandle handle, Verdict verdict, TimeNs now, Actions& out) {
  impl_->finish(handle, verdict, now, out);
}

bool Scheduler::cancel(RequestHandle handle, TimeNs, Actions&) { return impl_->cancel(handle); }

Admission Scheduler::retry(RequestHandle handle, InstanceId avoid, TimeNs now, Actions& out) {
  return impl_->retry(handle, avoid, now, out);
}

void Scheduler::abandon(RequestHandle handle) { impl_->abandon(handle); }

void Scheduler::expire(TimeNs now, Actions& out) { impl_->expire(now, out); }

TimeNs Scheduler::next_deadline() const { return impl_->next_deadline(); }

std::int32_t Scheduler::levels() const { return impl_->queue().levels(); }

std::int32_t Scheduler::level_max_length(std::int32_t level) const {
  return level >= 0 && level < levels() ? impl_->queue().level(level).max_length : 0;
}

std::int32_t Scheduler::ideal_level(std::int32_t length) const {
  return length >= 1 && length <= impl_->queue().longest() ? impl_->queue().ideal(length) : -1;
}

std::int32_t Scheduler::queued() const { return impl_->queued(); }
std::int32_t Scheduler::parked() const { return impl_->parked(); }
std::int32_t Scheduler::in_flight() const { return impl_->in_flight(); }
std::int32_t Scheduler::instances() const { return impl_->queue().instances(); }
bool Scheduler::fits_any(std::int32_t length) const { return impl_->fits_any(length); }
bool Scheduler::present(InstanceId instance) const { return impl_->queue().present(instance); }
RequestState Scheduler::state(RequestHandle handle) const { return impl_->state(handle); }

InstanceView Scheduler::view(InstanceId instance) const {
  if (!present(instance)) return {};
  const Instance& x = impl_->queue()[instance];
  return {x.runtime, x.level, x.state, x.in_flight, x.queued};
}

TimeNs Scheduler::cost(RuntimeId runtime, std::int32_t length, std::int32_t batch) const {
  return runtime < impl_->queue().runtimes() ? impl_->queue().cost(runtime).at(length, batch) : 0;
}

}  // namespace arlo::dispatch
