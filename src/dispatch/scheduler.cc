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
// A waiting request is in exactly one FIFO: of an instance it is *bound* to (r.instance is set), of its ideal level
// (r.instance is kNone), where it is parked when no active instance fits, and otherwise waits for late binding, or of
// its level's overdue line (r.overdue is set).
//   leave   its instance: bound -> bound elsewhere, or parked.
//   drain   its instance: bound -> bound elsewhere when another active instance fits, and stays otherwise.
//           `late`: level FIFO -> bound to the draining instance when no active one fits any more.
//   join    parked, or bound elsewhere -> bound, started, or (`late`) simply no longer parked.
//   its turn comes, or it would be bound, and it cannot be on time -> overdue; or its deadline is out of reach -> gone.
// A started request is in the `started` FIFO of its instance; a lost one is in none.
//
// Invariants between calls. An active instance with room has nothing bound. Under `late` no request waits while an
// instance of its home has room, unless it keeps off that instance. A draining instance has something outstanding.
// Outstanding requests, keys and heaps agree.
#include "dispatch/scheduler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "dispatch/binding.h"
#include "dispatch/forecast.h"
#include "dispatch/ledger.h"
#include "dispatch/policies/policies.h"
#include "dispatch/state.h"
#include "dispatch/turns.h"

namespace arlo::dispatch {

// The events. The rule decides who goes where, the binding how requests wait, and Turns whose turn it is.
class Scheduler::Impl {
 public:
  explicit Impl(const Options& options)
      : s_(options, needs_of(options.policy).times),
        rule_(make_rule(s_)),
        ledger_(s_, *rule_),
        forecast_(s_),
        turns_(s_, ledger_, forecast_),
        binding_(rule_->make_binding({s_, ledger_, forecast_, turns_})) {
    turns_.set_binding(*binding_);
  }

  RuntimeId add_runtime(const RuntimeSpec& spec) {
    validate(spec);
    const std::int32_t max_length = spec.max_length;
    const std::int32_t longest = s_.queue.longest(spec.variant);
    if (needs_of(s_.options.policy).one_length && longest != 0 && longest != max_length) {
      throw std::invalid_argument("max_length: " + std::to_string(max_length) + " differs from " +
                                  std::to_string(longest) + "; policy " + std::string(policy_name(s_.options.policy)) +
                                  " takes one max_length only");
    }
    std::int32_t new_level = -1;
    const RuntimeId runtime = s_.queue.add_runtime(spec, &new_level);
    if (new_level >= 0) {
      const bool is_longest = new_level + 1 == s_.queue.end_of(spec.variant);
      s_.lines.insert_level(s_.requests, new_level, max_length, is_longest);
      s_.overdue.insert_level(s_.requests, new_level, max_length, is_longest);
    }
    return runtime;
  }

  RuntimeId add_bundle(std::vector<RuntimeId> runtimes) {
    if (runtimes.empty()) throw std::invalid_argument("runtimes: a bundle has at least one");
    std::sort(runtimes.begin(), runtimes.end());
    for (std::size_t i = 0; i < runtimes.size(); ++i) {
      if (runtimes[i] >= s_.queue.runtimes() || s_.queue.is_bundle(runtimes[i])) {
        throw std::invalid_argument("runtimes: " + std::to_string(runtimes[i]) + " is no runtime that has been added");
      }
      if (i > 0 && runtimes[i] == runtimes[i - 1]) {
        throw std::invalid_argument("runtimes: " + std::to_string(runtimes[i]) + " is there twice");
      }
    }
    return s_.queue.add_bundle(runtimes);
  }

  InstanceId join(RuntimeId runtime, std::int32_t limit, TimeNs now, Actions& out) {
    if (runtime >= s_.queue.runtimes()) {
      throw std::invalid_argument("runtime: " + std::to_string(runtime) + " has not been added");
    }
    if (limit < 1) throw std::invalid_argument("inflight_limit: " + std::to_string(limit) + " is not at least 1");
    const InstanceId id = s_.queue.add_instance(runtime, limit);
    s_.queue.activate(id, rule_->key(s_.queue[id]));
    binding_->joined(id, now, out);
    return id;
  }

  bool drain(InstanceId id, TimeNs now, Actions& out) {
    if (!s_.queue.present(id)) return true;
    Instance& x = s_.queue[id];
    if (x.state == InstanceState::kDraining) return false;
    x.state = InstanceState::kDraining;
    s_.queue.deactivate(id);
    RequestHandle next = kNone;
    for (RequestHandle h = x.waiting.head; h != kNone; h = next) {
      next = s_.requests[h].next;
      if (s_.fits(s_.ideal(s_.requests[h]))) bind_again(h, now, out);
    }
    binding_->draining(id, now);
    turns_.serve(id, now, out);
    binding_->look_again(now, out);
    return !s_.queue.present(id);
  }

  void leave(InstanceId id, TimeNs now, Actions& out) {
    if (!s_.queue.present(id)) return;
    Instance& x = s_.queue[id];
    if (x.state == InstanceState::kActive) s_.queue.deactivate(id);
    x.state = InstanceState::kDraining;  // not in a heap
    while (!x.started.empty()) {
      const RequestHandle h = x.started.head;
      ledger_.release(h, now);
      s_.requests[h].state = RequestState::kLost;
      ledger_.emit(ActionKind::kLost, h, id, s_.queue.held(x, s_.requests[h].variant()).level, out);
    }
    for (RequestHandle h = x.waiting.head; h != kNone; h = x.waiting.head) bind_again(h, now, out);
    s_.queue.remove_instance(id);
    binding_->look_again(now, out);
  }

  Admitted arrive(Tag tag, Arrival arrival, TimeNs now, Actions& out) {
    if (arrival.length < 1 || arrival.length > s_.queue.longest(arrival.variant)) return {Admission::kTooLong, kNone};
    if (arrival.due != kNever || arrival.deadline != kNever) forecast_.begin(now);
    if (arrival.bulk) {
      forecast_.begin(now);
      arrival.due = kNever;
      arrival.client = ~arrival.client;
    }
    arrival.due = Turns::aim(arrival.due, now);
    arrival.client = FairRanks::place(arrival.client);
    arrival.arrived = now;
    const Body* const body = s_.bodies.of(arrival.variant);
    if (body != nullptr && arrival.bulk) {
      const VariantId slowest = body->variants.back();  // there is time for it
      if (s_.queue.with(slowest) > 0 && arrival.length <= s_.queue.longest(slowest)) arrival.variant = slowest;
    }
    const std::int32_t level = s_.queue.ideal(arrival.variant, arrival.length);
    if (arrival.bulk) return turns_.arrive_bulk(tag, arrival, level, now, out);
    if (body != nullptr) s_.bodies.arrived(arrival, level);
    if (s_.fits(level)) return binding_->arrive(tag, arrival, level, now, out);
    if (!turns_.may_wait(arrival, out)) return {Admission::kFull, kNone};
    const RequestHandle h = ledger_.admit(tag, arrival, s_.ranks.next(arrival.client));
    ledger_.wait_in_line(h, level);
    return {Admission::kParked, h};
  }

  TimeNs expected_finish(Arrival arrival, TimeNs now) {
    if (arrival.length < 1 || arrival.length > s_.queue.longest(arrival.variant)) return kNever;
    const std::int32_t level = s_.queue.ideal(arrival.variant, arrival.length);
    if (!s_.fits(level)) return kNever;
    forecast_.begin(now);
    arrival.due = Turns::aim(arrival.due, now);
    return binding_->expected_finish(arrival, level, now);
  }

  TimeNs expected_wait(std::int32_t length, VariantId variant, TimeNs now) {
    if (length < 1 || length > s_.queue.longest(variant)) return kNever;
    const std::int32_t level = s_.queue.ideal(variant, length);
    if (!s_.fits(level)) return kNever;
    forecast_.begin(now);
    return binding_->expected_wait(length, level, now);
  }

  RowsForecast forecast(std::span<const std::int32_t> lengths, VariantId variant, TimeNs now) {
    if (variant >= s_.queue.variants()) return {kNever, kNever};
    forecast_.begin(now);
    return forecast_.rows(lengths, variant, now);
  }

  void finish(RequestHandle h, Verdict verdict, TimeNs now, Actions& out) {
    const RequestState state = s_.requests.state(h);
    if (state == RequestState::kLost) s_.requests.give_back(h);
    if (state != RequestState::kStarted) return;
    const InstanceId id = s_.requests[h].instance;
    ledger_.observe(h, verdict, now);
    const bool through = ledger_.release(h, now);
    s_.requests.give_back(h);
    if (through) turns_.serve(id, now, out);
  }

  void set_share(VariantId variant, double share) {
    if (variant >= kVariants || !std::isfinite(share) || share <= 0) {
      throw std::invalid_argument("share: " + std::to_string(share) + " of variant " + std::to_string(variant) +
                                  " is not above 0, of one below " + std::to_string(kVariants));
    }
    s_.shares.set(variant, share);
  }

  void set_body(const std::vector<VariantId>& variants, std::unique_ptr<BatchChooser> chooser) {
    if (s_.options.policy != Policy::kLate || !s_.batching()) {
      throw std::invalid_argument("body: a variant is chosen for batches under policy `late` only");
    }
    if (variants.empty() || std::ranges::any_of(variants, [](VariantId v) { return v >= kVariants; })) {
      throw std::invalid_argument("body: at least one variant, each below " + std::to_string(kVariants));
    }
    const VariantId line = variants.front();
    const bool known = s_.bodies.of(line) != nullptr;
    if (!s_.bodies.set(variants, std::move(chooser)) || line >= s_.queue.variants()) return;
    for (std::int32_t level = s_.queue.first_of(line); level < s_.queue.end_of(line); ++level) {
      for (RequestHandle h = s_.lines[level].fifo.head; h != kNone; h = s_.requests[h].next) {
        if (!known) s_.bodies.forget(h);
        s_.bodies.add(s_.requests[h], h, level);
      }
    }
  }

  void clear_body(VariantId variant) {
    if (variant < kVariants) s_.bodies.clear(variant);
  }

  void hold() { s_.held = s_.batching(); }

  void release(TimeNs now, Actions& out) {
    if (!std::exchange(s_.held, false)) return;
    binding_->look_again(now, out);
    if (s_.queued == s_.lines.total()) return;  // nothing is bound or overdue
    for (InstanceId id = 0; id < s_.queue.ids_end(); ++id) {
      const Instance& x = s_.queue[id];
      if (!x.present || !x.has_room()) continue;
      const bool idles = s_.any_overdue(x) && x.state == InstanceState::kActive && x.idles();
      if (x.queued > 0 || idles) turns_.serve(id, now, out);
    }
  }

  bool cancel(RequestHandle h, Tag tag) {
    if (s_.requests.state(h) != RequestState::kWaiting || s_.requests[h].tag != tag) return false;
    ledger_.remove_waiting(h);
    return true;
  }

  Admission retry(RequestHandle h, InstanceId avoid, TimeNs now, Actions& out, std::int32_t most) {
    const RequestState state = s_.requests.state(h);
    if (state != RequestState::kStarted && state != RequestState::kLost) return Admission::kTooLong;
    InstanceId old = state == RequestState::kStarted ? s_.requests[h].instance : kNone;
    if (old != kNone) {
      ledger_.observe(h, Verdict::kFailed, now);
      if (ledger_.release(h, now)) {
        ledger_.refresh_key(old);
      } else {
        old = kNone;  // others of its batch are still there
      }
    }
    Request& r = s_.requests[h];
    r.rank = r.order();
    r.variant_ = s_.bodies.line_of(r.variant());
    r.avoid = avoid;
    if (most > 0) r.trial = static_cast<std::uint8_t>(std::bit_width(static_cast<std::uint32_t>(most)));
    Admission admission = Admission::kQueued;
    if (r.deadline <= now) {
      ledger_.emit(ActionKind::kExpired, h, kNone, s_.ideal(r), out);
      s_.requests.give_back(h);
    } else {
      admission = place(h, now, out);
    }
    if (old != kNone) turns_.serve(old, now, out);
    return s_.requests.state(h) == RequestState::kStarted ? Admission::kStarted : admission;
  }

  void abandon(RequestHandle h) {
    if (s_.requests.state(h) == RequestState::kLost) s_.requests.give_back(h);
  }

  void expire(TimeNs now, Actions& out) {
    for (RequestHandle h = s_.deadlines.pop(s_.requests, now); h != kNone; h = s_.deadlines.pop(s_.requests, now)) {
      ledger_.expire_one(h, out);
    }
    binding_->look_again(now, out);
  }

  [[nodiscard]] TimeNs next_deadline() const { return s_.queued == 0 ? kNever : s_.deadlines.next(); }
  [[nodiscard]] const State& state() const { return s_; }

  [[nodiscard]] std::int32_t parked(VariantId variant) const {
    std::int32_t parked = 0;
    if (variant >= s_.queue.variants()) return 0;
    for (std::int32_t level = s_.queue.first_of(variant); level < s_.queue.end_of(variant); ++level) {
      if (!s_.fits(level)) parked += s_.lines[level].count + s_.overdue[level].count;
    }
    return parked;
  }
  [[nodiscard]] std::int32_t parked() const {
    std::int32_t all = 0;
    for (VariantId variant = 0; variant < s_.queue.variants(); ++variant) all += parked(variant);
    return all;
  }

 private:
  // A request of any history that is in no FIFO and not counted as waiting.
  Admission place(RequestHandle h, TimeNs now, Actions& out) {
    const Request& r = s_.requests[h];
    const std::int32_t level = s_.ideal(r);
    if (r.overdue) return turns_.place_overdue(h, level, now, out);
    if (s_.fits(level)) return binding_->place(h, level, now, out);
    ledger_.wait_in_line(h, level);
    return Admission::kParked;
  }

  // Finds another place for a waiting request.
  void bind_again(RequestHandle h, TimeNs now, Actions& out) {
    if (s_.requests[h].deadline <= now) {
      ledger_.expire_one(h, out);
      return;
    }
    ledger_.take_out(h);
    ledger_.end_wait(h);
    place(h, now, out);
  }

  State s_;
  std::unique_ptr<Rule> rule_;
  Ledger ledger_;
  Forecast forecast_;
  Turns turns_;
  std::unique_ptr<Binding> binding_;
};

Scheduler::Scheduler(Options options) {
  validate(options);
  impl_ = std::make_unique<Impl>(options);
}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

RuntimeId Scheduler::add_runtime(const RuntimeSpec& spec) { return impl_->add_runtime(spec); }

RuntimeId Scheduler::add_bundle(const std::vector<RuntimeId>& runtimes) { return impl_->add_bundle(runtimes); }

InstanceId Scheduler::join(RuntimeId runtime, std::int32_t inflight_limit, TimeNs now, Actions& out) {
  return impl_->join(runtime, inflight_limit, now, out);
}

bool Scheduler::drain(InstanceId instance, TimeNs now, Actions& out) { return impl_->drain(instance, now, out); }

void Scheduler::leave(InstanceId instance, TimeNs now, Actions& out) { impl_->leave(instance, now, out); }

Admitted Scheduler::arrive(Tag tag, const Arrival& arrival, TimeNs now, Actions& out) {
  return impl_->arrive(tag, arrival, now, out);
}

void Scheduler::set_share(VariantId variant, double share) { impl_->set_share(variant, share); }

void Scheduler::set_body(const std::vector<VariantId>& variants, std::unique_ptr<BatchChooser> chooser) {
  impl_->set_body(variants, std::move(chooser));
}

void Scheduler::clear_body(VariantId variant) { impl_->clear_body(variant); }

double Scheduler::price(VariantId variant) const {
  const Body* const body = variant < kVariants ? impl_->state().bodies.of(variant) : nullptr;
  return body == nullptr ? 0 : body->chooser->price();
}

void Scheduler::hold() { impl_->hold(); }

void Scheduler::release(TimeNs now, Actions& out) { impl_->release(now, out); }

void Scheduler::finish(RequestHandle handle, Verdict verdict, TimeNs now, Actions& out) {
  impl_->finish(handle, verdict, now, out);
}

bool Scheduler::cancel(RequestHandle handle, Tag tag, TimeNs, Actions&) { return impl_->cancel(handle, tag); }

Admission Scheduler::retry(RequestHandle handle, InstanceId avoid, TimeNs now, Actions& out, std::int32_t most) {
  return impl_->retry(handle, avoid, now, out, most);
}

void Scheduler::abandon(RequestHandle handle) { impl_->abandon(handle); }

void Scheduler::expire(TimeNs now, Actions& out) { impl_->expire(now, out); }

TimeNs Scheduler::next_deadline() const { return impl_->next_deadline(); }

std::int32_t Scheduler::levels() const { return impl_->state().queue.levels(); }

std::int32_t Scheduler::level_max_length(std::int32_t level) const {
  return level >= 0 && level < levels() ? impl_->state().queue.level(level).max_length : 0;
}

VariantId Scheduler::level_variant(std::int32_t level) const {
  return level >= 0 && level < levels() ? impl_->state().queue.level(level).variant : VariantId{0};
}

std::int32_t Scheduler::ideal_level(std::int32_t length, VariantId variant) const {
  const MultiLevelQueue& queue = impl_->state().queue;
  return length >= 1 && length <= queue.longest(variant) ? queue.ideal(variant, length) : -1;
}

std::int32_t Scheduler::queued() const { return impl_->state().queued; }
std::int32_t Scheduler::parked() const { return impl_->parked(); }
std::int32_t Scheduler::queued_of(VariantId variant) const { return impl_->state().queued_of.at(variant); }
std::int32_t Scheduler::parked_of(VariantId variant) const { return impl_->parked(variant); }
std::int32_t Scheduler::in_flight_of(VariantId variant) const { return impl_->state().in_flight_of.at(variant); }
std::int32_t Scheduler::overdue() const { return impl_->state().overdue.total(); }
std::int32_t Scheduler::in_flight() const { return impl_->state().in_flight; }
std::int32_t Scheduler::instances() const { return impl_->state().queue.instances(); }
bool Scheduler::fits_any(std::int32_t length, VariantId variant) const {
  const std::int32_t level = ideal_level(length, variant);
  return level >= 0 && impl_->state().fits(level);
}
TimeNs Scheduler::cost_of_length(std::int32_t length, VariantId variant) const {
  const MultiLevelQueue& queue = impl_->state().queue;
  if (length < 1 || length > queue.longest(variant)) return kNever;
  const GroupIndex g = queue.first_fitting(queue.ideal(variant, length));
  if (g == queue.groups()) return kNever;
  const Bundle& bundle = queue.group_cost(g);
  const bool one = queue.first_of(variant) + 1 == queue.end_of(variant) && !bundle.members().front().cost.dynamic();
  return one ? 0 : bundle.share(length);
}
TimeNs Scheduler::expected_finish(const Arrival& arrival, TimeNs now) { return impl_->expected_finish(arrival, now); }
TimeNs Scheduler::expected_wait(std::int32_t length, VariantId variant, TimeNs now) {
  return impl_->expected_wait(length, variant, now);
}
RowsForecast Scheduler::forecast(std::span<const std::int32_t> lengths, VariantId variant, TimeNs now) {
  return impl_->forecast(lengths, variant, now);
}
std::int32_t Scheduler::active_of(VariantId variant) const {
  return variant < impl_->state().queue.variants() ? impl_->state().queue.with(variant) : 0;
}
bool Scheduler::present(InstanceId instance) const { return impl_->state().queue.present(instance); }
RequestState Scheduler::state(RequestHandle handle) const { return impl_->state().requests.state(handle); }

InstanceView Scheduler::view(InstanceId instance) const {
  if (!present(instance)) return {};
  const Instance& x = impl_->state().queue[instance];
  const std::int32_t level = impl_->state().queue.held(x).front().level;
  return {x.runtime, level, x.state, x.in_flight, x.queued};
}

TimeNs Scheduler::cost(RuntimeId runtime, std::int32_t length, std::int32_t batch) const {
  if (runtime >= impl_->state().queue.runtimes()) return 0;
  const Bundle& bundle = impl_->state().queue.held(runtime).front().bundle;
  return bundle.at(std::clamp(length, 1, bundle.longest()), batch);
}

}  // namespace arlo::dispatch
