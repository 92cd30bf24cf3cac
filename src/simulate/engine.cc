#include "simulate/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "simulate/accounts.h"
#include "simulate/agenda.h"
#include "simulate/checks.h"
#include "simulate/fleet.h"
#include "simulate/journeys.h"
#include "simulate/requests.h"
#include "simulate/roots.h"

namespace arlo::simulate {

using dispatch::Action;
using dispatch::ActionKind;
using dispatch::kNone;

class Engine::Impl {
 public:
  explicit Impl(const Options& options)
      : options_(checked(options)),
        scheduler_(options.dispatch),
        accounts_(options.warmup, options.record),
        fleet_(scheduler_, actions_),
        requests_(options) {
    limits_.fill({options.slo, options.timeout});
  }

  void set_variant(dispatch::VariantId variant, TimeNs slo, TimeNs timeout, double share) {
    need_duration(slo, "slo", 1);
    if (timeout != kNever) need_duration(timeout, "timeout", 1);
    need(by_length_.empty(), "variant: requests have arrived already");
    scheduler_.set_share(variant, share);
    limits_[variant] = {slo, timeout};
    limited_ = limited_ || timeout != kNever;
    accounts_.by_variant();
  }

  void set_cascade(Cascade cascade) {
    need(by_length_.empty(), "cascade: requests have arrived already");
    journeys_.emplace(std::move(cascade));
  }

  void set_pipeline(Pipeline pipeline) {
    need(by_length_.empty() && !journeys_, "pipeline: requests have arrived already, or there is a cascade");
    roots_.emplace(std::move(pipeline), scheduler_, actions_, requests_, options_.warmup);
    limited_ = true;
  }

  void plan(const flow::pipeline::Plan& plan) {
    need(roots_.has_value(), "plan: there is no pipeline");
    roots_->plan(plan, now_);
  }

  // --- the caller's acts

  void replace(WorkerId id, RuntimeId runtime, TimeNs delay) {
    fleet_.replace(id, runtime, delay, now_);
    settle();
  }

  void remove(WorkerId id) {
    fleet_.remove(id, now_);
    settle();
    find_ways();
  }

  void fail(WorkerId id, TimeNs restart) {
    fleet_.fail(id, restart, now_);
    settle();
    find_ways();
  }

  // --- time

  void advance(TimeNs until) {
    need(until >= now_ && until < kFar, "until: time does not go back, and lies within 2^61 ns");
    run(until);
    now_ = until;
    feed_.passed(until);
  }

  void finish() {
    run(kNever);
    if (roots_) {
      roots_->give_up(now_);
      conclude_roots();
    }
    for (Slot slot = 0; slot < requests_.slots(); ++slot) {  // parked for ever
      Request& request = requests_[slot];
      if (!request.present || request.over) continue;
      scheduler_.cancel(request.handle, now_, actions_);
      if (request.extra) {
        visited(slot, false);
        continue;
      }
      if (!settles_for(slot, flow::Reason::kStageAbsent)) end(slot, Outcome::kFailed);
    }
    settle();
    feed_.passed(now_);
  }

  [[nodiscard]] std::int32_t waiting_at(const Worker& worker) const {
    std::size_t count = worker.inbox.size();
    if (worker.instance != kNone) count += static_cast<std::size_t>(scheduler_.view(worker.instance).queued);
    return static_cast<std::int32_t>(count);
  }

  Options options_;
  dispatch::Actions actions_;
  dispatch::Scheduler scheduler_;
  TimeNs now_ = 0;
  Accounts accounts_;
  std::vector<std::int64_t> by_length_;
  Fleet fleet_;
  Feed feed_;
  std::optional<Journeys> journeys_;
  std::optional<Roots> roots_;

 private:
  // Handles everything due before `until`, in the order of the header.
  void run(TimeNs until) {
    const bool expires = limited_ || options_.timeout != kNever;
    for (;;) {
      const TimeNs worker = fleet_.steps.next();
      const TimeNs arrival = feed_.next();
      const TimeNs end_known = returns_.next();
      const TimeNs join = fleet_.next_join();
      const TimeNs expiry = expires ? std::max(scheduler_.next_deadline(), now_) : kNever;
      const TimeNs at = std::min({worker, arrival, end_known, join, expiry});
      if (at >= until) return;
      for (; journeys_ && look_ <= at; look_ += flow::Price::kLook) journeys_->price.look();
      now_ = at;
      if (worker == at) {
        step(fleet_.steps.worker());
      } else if (end_known == at) {
        if (goes_on()) scheduler_.hold();  // what goes on may go as batches
        do answer(returns_.take());
        while (goes_on() && returns_.next() == at);
        scheduler_.release(now_, actions_);
      } else if (join == at) {
        fleet_.join(now_);
      } else if (expiry == at) {
        scheduler_.expire(now_, actions_);
      } else {
        arrive(feed_.take());
      }
      settle();
    }
  }

  void arrive(Feed::Arrival arrival) {
    const auto [length, variant] = arrival;
    const Slot slot = requests_.take(now_, length, variant);
    const auto index = static_cast<std::size_t>(std::clamp(length, 0, dispatch::kMaxLength));
    if (index >= by_length_.size()) by_length_.resize(index + 1);
    ++by_length_[index];
    requests_[slot].whole = length;
    accounts_.arrived(requests_[slot]);
    if (roots_) {
      const TimeNs due = now_ + std::max<TimeNs>(limits_[variant].slo - options_.overhead, 0);
      const TimeNs most = roots_->deadline();
      roots_->arrive(slot, due, most == kNever ? kNever : now_ + std::max<TimeNs>(most - options_.overhead, 0), now_);
      conclude_roots();
      return;
    }
    if (journeys_) {
      const std::int32_t first = flow::entry(present(requests_[slot]), 0, journeys_->stages());
      requests_[slot].stage = static_cast<std::int8_t>(std::max(first, 0));
    }
    if (admit(slot).handle == kNone) {
      end(slot, Outcome::kRejected);
    } else if (journeys_ && journeys_->cascade().speculate) {
      speculate(slot);
    }
  }

  // What it aims at: `overhead` comes after the worker's answer. Clients that wait for ever want every answer.
  dispatch::Admitted admit(Slot slot) {
    Request& request = requests_[slot];
    const Limits& limits = limits_[request.variant];
    const bool limited = limits.timeout != kNever;
    TimeNs due = kNever;
    TimeNs deadline = kNever;
    if (limited && !request.extra) {
      due = request.arrived + std::max<TimeNs>(limits.slo - options_.overhead, 0);
      deadline = request.arrived + std::max<TimeNs>(patience(request) - options_.overhead, 0);
      if (request.answered >= 0) {
        deadline -= journeys_->cascade().margin;
        if (journeys_->cascade().auto_price && !request.bulk) deadline = std::min(deadline, due);
      }
      if (request.bulk) due = kNever;
    }
    const dispatch::Admitted admitted =
        scheduler_.arrive(slot,
                          {.length = request.length,
                           .due = due,
                           .deadline = deadline,
                           .bulk = request.bulk,
                           .variant = request.stage < 0 ? request.variant : journeys_->variant(request.stage),
                           .follows = request.answered >= 0},
                          now_, actions_);
    if (admitted.handle != kNone) request.handle = admitted.handle;
    return admitted;
  }

  [[nodiscard]] bool goes_on() const { return journeys_ || roots_; }

  // --- pipelines

  void conclude_roots() {
    for (const auto [slot, failed] : roots_->ended) {
      Request& root = requests_[slot];
      const bool counts = root.arrived >= options_.warmup;
      const TimeNs latency = now_ - root.arrived + options_.overhead;
      const bool late = latency > limits_[root.variant].slo;
      if (counts) {
        PipelineTotals& totals = roots_->totals;
        ++totals.roots;
        ++(failed ? totals.failed : late ? totals.late : totals.on_time);
        totals.accuracy_sum += failed ? 0 : root.accuracy;
        totals.on_time_accuracy_sum += failed || late ? 0 : root.accuracy;
      }
      if (failed) {
        end(slot, root.reason < 0 ? Outcome::kFailed : Outcome::kExpired);
        continue;
      }
      root.begun = root.arrived;
      conclude(slot, latency);
    }
    roots_->ended.clear();
  }

  // --- cascades

  [[nodiscard]] flow::StageSet present(const Request& request) const {
    flow::StageSet set = 0;
    for (std::int32_t s = 0; s < journeys_->stages(); ++s) {
      if (scheduler_.fits_any(request.whole, journeys_->variant(s))) set |= 1U << s;
    }
    return set;
  }

  // A stage has answered: true when the row goes on.
  bool goes_on(Slot slot) {
    Request& request = requests_[slot];
    auto& price = journeys_->price;
    const auto decision = journeys_->decide(request, request.stage, present(request), journeys_->price_now());
    request.answered = request.stage;
    request.reason = static_cast<std::int8_t>(decision.reason);
    const bool to_last = !decision.exit && decision.to + 1 == journeys_->stages();
    const bool early = decision.exit && decision.reason == flow::Reason::kConfident;
    if (early || to_last) journeys_->exit_shares.saw(request.whole, early);
    if (decision.exit) return false;
    if (to_last && request.ahead != kNone) {
      if (scheduler_.state(requests_[request.ahead].handle) == dispatch::RequestState::kStarted) {
        request.awaits = true;
        return true;
      }
      let_go(slot);
    }
    price.wanted(static_cast<std::int32_t>(journeys_->cascade().rules.prices.size()) - 1);
    if (enter(slot, decision.to)) return true;
    price.short_of_time();
    return false;
  }

  bool enter(Slot slot, std::int32_t stage) {
    Request& request = requests_[slot];
    const Request as_it_was = request;
    request.stage = static_cast<std::int8_t>(stage);
    request.length = journeys_->tokens(request, stage);
    request.before += request.executed;
    request.executed = 0;
    request.returning = false;
    request.lost = 0;
    const auto admitted = admit(slot);
    if (admitted.handle != kNone) return true;
    request = as_it_was;
    const bool hurry = admitted.admission == dispatch::Admission::kTooLate;
    const auto late = journeys_->cascade().auto_price ? flow::Reason::kLoad : flow::Reason::kDeadline;
    request.reason = static_cast<std::int8_t>(hurry ? late : flow::Reason::kStageAbsent);
    return false;
  }

  // --- speculation, as in src/gateway/desk/ahead.cc

  void speculate(Slot slot) {
    const Request& row = requests_[slot];
    const std::int32_t last = journeys_->stages() - 1;
    const auto& cascade = journeys_->cascade();
    if (row.bulk || row.stage >= last || cascade.rules.ensemble != flow::Ensemble::kNone ||
        journeys_->price_now() > 0 || scheduler_.queued_of(journeys_->variant(last)) > 0 ||
        !flow::speculates(fleet_.last_stage(journeys_->variant(last), row.whole),
                          journeys_->exit_shares.of(row.whole))) {
      return;
    }
    const Slot visit = requests_.beside(slot, now_);  // and no reference from before holds
    Request& ahead = requests_[visit];
    ahead.stage = static_cast<std::int8_t>(last);
    ahead.extra = true;
    ahead.of = slot;
    requests_[slot].ahead = visit;
    if (admit(visit).admission != dispatch::Admission::kStarted) return let_go(slot);
    ++journeys_->speculated;
  }

  // The row has no use for its visit any more.
  void let_go(Slot slot) {
    const Slot visit = std::exchange(requests_[slot].ahead, kNone);
    if (visit == kNone) return;
    requests_[visit].of = kNone;
    const auto handle = requests_[visit].handle;
    if (handle == kNone || scheduler_.cancel(handle, now_, actions_)) requests_.give_back(visit);
  }

  // A worker is through with a visit, or with a row that has its answer from one.
  void through(Slot slot, bool good) {
    if (!requests_[slot].over) return visited(slot, good);
    requests_.give_back(slot);
  }

  // A visit is over.
  void visited(Slot visit, bool good) {
    const Request ahead = requests_[visit];
    requests_.give_back(visit);
    if (ahead.of == kNone) return;
    const Slot slot = ahead.of;
    Request& row = requests_[slot];
    row.ahead = kNone;
    if (!good) {
      if (std::exchange(row.awaits, false) && !enter(slot, ahead.stage)) {
        if (!settles_for(slot, static_cast<flow::Reason>(row.reason))) end(slot, Outcome::kFailed);
      }
      return;
    }
    TimeNs latency = now_ - row.arrived + options_.overhead;
    if (ended_before(row, latency)) return conclude(slot, latency);
    const bool runs = !row.awaits && !scheduler_.cancel(row.handle, now_, actions_);
    const Request as_it_was = row;
    row.answered = ahead.stage;
    row.reason = static_cast<std::int8_t>(flow::Reason::kFinal);
    row.begun = ahead.begun;
    row.before += row.awaits ? row.executed : 0;
    row.executed = ahead.executed;
    row.worker = ahead.worker;
    row.runtime = ahead.runtime;
    row.length = ahead.length;
    row.computed = ahead.computed;
    if (!runs) return conclude(slot, latency);
    report(slot, latency);
    requests_[slot] = as_it_was;  // the worker is not through
    requests_[slot].over = true;
  }

  // Ends a row with the answer that it has; false: it has none.
  bool settles_for(Slot slot, flow::Reason reason) {
    Request& request = requests_[slot];
    if (request.answered < 0) return false;
    if (reason == flow::Reason::kDeadline) {
      journeys_->price.short_of_time();
      if (journeys_->cascade().auto_price) reason = flow::Reason::kLoad;
    }
    request.reason = static_cast<std::int8_t>(reason);
    request.begun = now_;
    conclude(slot, now_ - request.arrived + options_.overhead);
    return true;
  }

  // Rows whose stage has gone go on to another one, or end with what they have.
  void find_ways() {
    if (roots_) {
      roots_->find_ways(now_);
      conclude_roots();
      settle();
    }
    if (!journeys_) return;
    for (Slot slot = 0; slot < requests_.slots(); ++slot) {
      Request& request = requests_[slot];
      if (request.extra || request.awaits || request.over) continue;
      const bool waits = request.present && scheduler_.state(request.handle) == dispatch::RequestState::kWaiting;
      if (!waits || scheduler_.fits_any(request.length, journeys_->variant(request.stage))) continue;
      const auto there = present(request);
      std::int32_t to = flow::entry(there, 0, journeys_->stages());
      if (request.answered >= 0) {
        const auto decision = journeys_->decide(request, request.answered, there, 0);
        to = decision.exit ? -1 : decision.to;
      }
      if (to < 0 && request.answered < 0) continue;
      scheduler_.cancel(request.handle, now_, actions_);
      if (to >= 0 && enter(slot, to)) continue;
      if (!settles_for(slot, flow::Reason::kStageAbsent)) end(slot, Outcome::kRejected);
    }
    settle();
  }

  // How long a client waits.
  [[nodiscard]] TimeNs patience(const Request& request) const {
    const TimeNs timeout = limits_[request.variant].timeout;
    if (!request.bulk || timeout == kNever) return timeout;
    return timeout < kFar / kBulkPatience ? kBulkPatience * timeout : kFar;
  }

  // A row that has an answer ended with it at its deadline, which is before this answer.
  bool ended_before(Request& request, TimeNs& latency) const {
    const TimeNs patient = patience(request) == kNever ? kNever : patience(request) - journeys_->cascade().margin;
    if (request.answered < 0 || latency <= patient) return false;
    latency = patient;
    request.reason = static_cast<std::int8_t>(flow::Reason::kDeadline);
    return true;
  }

  // A batch has ended, or a row has reached an idle worker.
  void step(WorkerId id) {
    Worker& worker = fleet_[id];
    touch(id);
    if (worker.batch.empty() || worker.ends != now_) return;
    fleet_.count_busy(worker, worker.ends - worker.begun);
    ++fleet_.runtime(worker.executes).view.batches;
    if (worker.begun >= options_.warmup) {
      ++accounts_.all.totals.batches;
      accounts_.all.totals.rows += worker.batch.size();
    }
    worker.served += worker.batch.size();
    ended_.swap(worker.batch);
    worker.batch.clear();
    if (goes_on()) scheduler_.hold();
    for (const Slot slot : ended_) {
      if (options_.hop_back == 0) {
        answer(slot);
      } else {
        requests_[slot].returning = true;
        returns_.add(now_ + options_.hop_back, slot);
      }
    }
    ended_.clear();
    if (goes_on()) scheduler_.release(now_, actions_);
  }

  // The scheduler learns that a request was executed, and the client gets its answer.
  void answer(Slot slot) {
    Request& request = requests_[slot];
    const WorkerId id = request.worker;
    scheduler_.finish(request.handle, dispatch::Verdict::kAnswered, now_, actions_);
    if (roots_) {
      roots_->answered(slot, now_);
      fleet_.answered(id, now_);
      conclude_roots();
      return;
    }
    if (request.over || request.extra) {
      through(slot, true);
      return fleet_.answered(id, now_);
    }
    TimeNs latency = now_ - request.arrived + options_.overhead;
    if (journeys_) {
      if (!ended_before(request, latency) && goes_on(slot)) return fleet_.answered(id, now_);
    }
    conclude(slot, latency);
    fleet_.answered(id, now_);
  }

  void conclude(Slot slot, TimeNs latency) {
    report(slot, latency);
    let_go(slot);
    requests_.give_back(slot);
  }

  void report(Slot slot, TimeNs latency) {
    const Request& request = requests_[slot];
    Outcome outcome = request.bulk || latency <= limits_[request.variant].slo ? Outcome::kOnTime : Outcome::kLate;
    if (latency > patience(request)) outcome = Outcome::kExpired;
    if (outcome != Outcome::kExpired && accounts_.answered(request, latency, outcome == Outcome::kOnTime)) {
      RuntimeView& view = fleet_.runtime(request.runtime).view;
      ++view.served;
      view.demoted += request.demoted ? 1 : 0;
    }
    accounts_.ended(request, outcome, latency);
  }

  // A request leaves the system.
  void end(Slot slot, Outcome outcome, TimeNs latency = -1) {
    accounts_.ended(requests_[slot], outcome, latency);
    let_go(slot);
    requests_.give_back(slot);
  }

  // Carries out the scheduler's decisions, then lets the workers that got something begin. At the end of every event.
  void settle() {
    for (std::size_t i = 0; i < actions_.size(); ++i) {  // NOLINT(modernize-loop-convert): retry() appends
      const Action action = actions_[i];                 // a copy, for the same reason
      const auto slot = static_cast<Slot>(action.tag);
      if (action.kind == ActionKind::kStart) {
        const WorkerId id = fleet_.at(action.instance);
        requests_[slot].worker = id;
        requests_[slot].demoted = action.demoted;
        requests_[slot].handle = action.handle;
        fleet_[id].inbox.push({slot, now_ + options_.hop_out, action.runtime, action.batch});
        touch(id);
      } else if (action.kind == ActionKind::kExpired && roots_) {
        roots_->expired(slot, now_);
        conclude_roots();
      } else if (action.kind == ActionKind::kExpired) {
        if (!settles_for(slot, flow::Reason::kDeadline)) end(slot, Outcome::kExpired);
      } else {
        lost(slot);
      }
    }
    actions_.clear();
    for (const WorkerId id : touched_) {
      fleet_[id].touched = false;
      begin(id);
    }
    touched_.clear();
  }

  void lost(Slot slot) {
    Request& request = requests_[slot];
    if (request.returning) return;  // its answer is on the way
    if (request.over || request.extra) {
      scheduler_.abandon(request.handle);
      through(slot, false);
      return;
    }
    if (request.lost++ < options_.retries) {
      request.begun = -1;
      // The instance is gone: nothing to keep off.
      scheduler_.retry(request.handle, kNone, now_, actions_);
      if (scheduler_.state(request.handle) != dispatch::RequestState::kGone) accounts_.retried(request);
      return;
    }
    scheduler_.abandon(request.handle);
    if (roots_) {
      roots_->failed(slot, now_);
      conclude_roots();
      return;
    }
    if (!settles_for(slot, flow::Reason::kStageFailed)) end(slot, Outcome::kFailed);
  }

  void touch(WorkerId id) {
    if (fleet_[id].touched) return;
    fleet_[id].touched = true;
    touched_.push_back(id);
  }

  // An idle worker takes the rows that have reached it, or waits for the first that is on its way.
  void begin(WorkerId id) {
    Worker& worker = fleet_[id];
    if (!worker.batch.empty()) return;
    if (worker.inbox.empty()) {
      fleet_.steps.unschedule(worker, id);
      return;
    }
    if (worker.inbox.front().ready > now_) {
      fleet_.steps.schedule(worker, id, worker.inbox.front().ready);
      return;
    }
    const Inbox::Row first = worker.inbox.front();
    const Fleet::Runtime& runtime = fleet_.runtime(first.runtime);
    worker.executes = first.runtime;
    std::int32_t longest = 1;
    do {
      const Slot slot = worker.inbox.front().slot;
      worker.inbox.pop();
      worker.batch.push_back(slot);
      longest = std::max(longest, requests_[slot].length);
    } while (!worker.inbox.empty() && joins(worker.inbox.front(), first, worker.batch.size(), runtime.max_batch));
    TimeNs took = runtime.times.of(longest, worker.batch.size());
    const double factor = requests_.noise(worker.batch.front()) * worker.slow;
    if (factor != 1) {
      took = std::llround(std::min(static_cast<double>(took) * factor, static_cast<double>(kFar)));
    }
    took = std::min(took, std::max<TimeNs>(kFar - now_, 0));  // time ends there
    for (const Slot slot : worker.batch) {
      Request& request = requests_[slot];
      request.begun = now_;
      request.executed = took;
      request.runtime = worker.executes;
      request.computed = runtime.dynamic ? longest : runtime.max_length;
    }
    worker.begun = now_;
    worker.ends = now_ + took;
    fleet_.steps.schedule(worker, id, worker.ends);
  }

  // Whether the next row at a worker is executed with the first one.
  [[nodiscard]] bool joins(const Inbox::Row& next, const Inbox::Row& first, std::size_t rows,
                           std::int32_t max_batch) const {
    if (options_.dispatch.batching != dispatch::Batching::kOne)
      return first.batch != kNone && next.batch == first.batch;
    return rows < static_cast<std::size_t>(max_batch) && next.ready <= now_ && next.runtime == first.runtime;
  }

  struct Limits {
    TimeNs slo;
    TimeNs timeout;
  };
  std::array<Limits, dispatch::kVariants> limits_;
  bool limited_ = false;  // some variant that set_variant() was called for
  TimeNs look_ = 0;       // at the price of a cascade
  Requests requests_;
  Returns returns_;
  std::vector<WorkerId> touched_;
  std::vector<Slot> ended_;
};

Engine::Engine(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

RuntimeId Engine::add_runtime(const RuntimeOptions& runtime) { return impl_->fleet_.add_runtime(runtime); }
RuntimeId Engine::add_bundle(const std::vector<RuntimeId>& runtimes, std::int32_t inflight_limit) {
  return impl_->fleet_.add_bundle(runtimes, inflight_limit);
}
WorkerId Engine::add_worker(RuntimeId runtime, TimeNs at) { return impl_->fleet_.add_worker(runtime, at, impl_->now_); }
void Engine::replace(WorkerId worker, RuntimeId runtime, TimeNs delay) { impl_->replace(worker, runtime, delay); }
void Engine::remove(WorkerId worker) { impl_->remove(worker); }
void Engine::fail(WorkerId worker, TimeNs restart) { impl_->fail(worker, restart); }
void Engine::slow(WorkerId worker, double factor) { impl_->fleet_.slow(worker, factor); }
void Engine::feed(std::span<const TimeNs> arrived, std::span<const std::int32_t> length,
                  std::span<const dispatch::VariantId> variant) {
  impl_->feed_.add(arrived, length, variant);
}
void Engine::set_variant(dispatch::VariantId variant, TimeNs slo, TimeNs timeout, double share) {
  impl_->set_variant(variant, slo, timeout, share);
}
void Engine::set_cascade(Cascade cascade) { impl_->set_cascade(std::move(cascade)); }
void Engine::set_pipeline(Pipeline pipeline) { impl_->set_pipeline(std::move(pipeline)); }
void Engine::plan(const flow::pipeline::Plan& plan) { impl_->plan(plan); }
const PipelineTotals* Engine::pipeline() const { return impl_->roots_ ? &impl_->roots_->totals : nullptr; }
double Engine::worker_price(std::int32_t variant) const { return impl_->roots_ ? impl_->roots_->price(variant) : 0; }
bool Engine::cascade() const { return impl_->journeys_.has_value(); }
std::uint64_t Engine::speculated() const { return impl_->journeys_ ? impl_->journeys_->speculated : 0; }
std::int32_t Engine::price() const { return impl_->journeys_ ? impl_->journeys_->price_now() : 0; }
void Engine::advance(TimeNs until) { impl_->advance(until); }
void Engine::finish() { impl_->finish(); }
TimeNs Engine::now() const { return impl_->now_; }
const Totals& Engine::totals() const { return impl_->accounts_.all.totals; }
const Histogram& Engine::latency() const { return impl_->accounts_.all.latency; }
const Totals& Engine::totals(dispatch::VariantId variant) const { return impl_->accounts_.of(variant).totals; }
const Histogram& Engine::latency(dispatch::VariantId variant) const { return impl_->accounts_.of(variant).latency; }
const std::vector<std::int64_t>& Engine::arrivals_by_length() const { return impl_->by_length_; }
std::size_t Engine::workers() const { return impl_->fleet_.size(); }
std::size_t Engine::runtimes() const { return impl_->fleet_.runtimes(); }
std::int32_t Engine::queued() const { return impl_->scheduler_.queued(); }
std::int32_t Engine::in_flight() const { return impl_->scheduler_.in_flight(); }
const Columns& Engine::columns() const { return impl_->accounts_.columns; }
TimeNs Engine::recent_bucket(std::size_t bucket) { return Buckets<7>::lower(bucket); }

Recent Engine::take_recent(std::vector<std::uint64_t>& counts) { return impl_->accounts_.take_recent(counts); }

WorkerView Engine::worker(WorkerId worker) const {
  need(worker < impl_->fleet_.size(), "worker: there is no " + std::to_string(worker));
  const Worker& w = impl_->fleet_[worker];
  const TimeNs running = w.batch.empty() ? 0 : impl_->now_ - w.begun;
  return {w.runtime,        w.state, impl_->waiting_at(w), static_cast<std::int32_t>(w.batch.size()), w.since,
          w.busy + running, w.served};
}

RuntimeView Engine::runtime(RuntimeId runtime) const {
  impl_->fleet_.need_runtime(runtime);
  return impl_->fleet_.runtime(runtime).view;
}

}  // namespace arlo::simulate
