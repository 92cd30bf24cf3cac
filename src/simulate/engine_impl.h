// The implementation of Engine: the loop in the order of engine.h, and its events. Cascades: engine_cascade.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "simulate/accounts.h"
#include "simulate/agenda.h"
#include "simulate/checks.h"
#include "simulate/engine.h"
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

  void set_tokens(TokenQueries tokens) {
    need(by_length_.empty() && !journeys_ && !roots_, "tokens: requests have arrived already, or there is a flow");
    need(!tokens.queries.empty(), "queries: at least one");
    need(std::adjacent_find(tokens.bins.begin(), tokens.bins.end(), std::greater_equal<>()) == tokens.bins.end(),
         "bins must ascend");
    scheduler_.set_body(tokens.counts.variants, solve::tokens::make_chooser(tokens.counts));
    tokens_.emplace(std::move(tokens));
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
      if (!request.present) continue;
      scheduler_.cancel(request.handle, slot, now_, actions_);
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
  std::optional<TokenQueries> tokens_;

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
        if (goes_on()) scheduler_.hold();  // rows that go on may go as batches
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
    need(!tokens_ || variant < tokens_->queries.size(), "variant: none of the queries");
    const Slot slot = requests_.take(now_, length, variant);
    count_length(by_length_, length);
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
      const std::int32_t first = journeys_->entry(present(requests_[slot]));
      requests_[slot].stage = static_cast<std::int8_t>(std::max(first, 0));
    }
    if (admit(slot).handle == kNone) {
      end(slot, Outcome::kRejected);
    }
  }

  // Its aim: `overhead` comes after the worker's answer. Clients that wait for ever want every answer.
  dispatch::Admitted admit(Slot slot) {
    Request& request = requests_[slot];
    const Limits& limits = limits_[request.variant];
    const bool limited = limits.timeout != kNever;
    TimeNs due = kNever;
    TimeNs deadline = kNever;
    if (limited) {
      due = request.arrived + std::max<TimeNs>(limits.slo - options_.overhead, 0);
      deadline = request.arrived + std::max<TimeNs>(patience(request) - options_.overhead, 0);
      if (request.answered >= 0) {
        deadline -= journeys_->cascade().margin;
        if (journeys_->cascade().auto_price && !request.bulk) deadline = std::min(deadline, due);
      }
      if (request.bulk) due = kNever;
    }
    dispatch::Arrival arrival{.length = request.length,
                              .due = due,
                              .deadline = deadline,
                              .bulk = request.bulk,
                              .variant = request.stage < 0 ? request.variant : journeys_->variant(request.stage),
                              .follows = request.answered >= 0};
    if (tokens_) {
      const TokenQueries::Query& query = tokens_->queries.at(request.variant);
      arrival.due = kNever;
      arrival.variant = tokens_->counts.variants.front();
      arrival.utility = query.utility;
      arrival.kind = query.kind;
      const std::vector<std::int32_t>& bins = tokens_->bins;
      if (!bins.empty()) {
        const auto bin = std::lower_bound(bins.begin(), bins.end() - 1, request.length);
        arrival.kind += static_cast<std::uint32_t>(bin - bins.begin());
      }
    }
    const dispatch::Admitted admitted = scheduler_.arrive(slot, arrival, now_, actions_);
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

  [[nodiscard]] flow::StageSet present(const Request& request) const;
  // A stage has answered. Returns true when the row goes on.
  bool goes_on(Slot slot);
  bool enter(Slot slot, std::int32_t stage);
  // Ends a row with the answer that it has; false: it has none.
  bool settles_for(Slot slot, flow::Reason reason);
  // Moves rows whose stage has gone to another one, or ends them with the answers they have.
  void find_ways();

  // Returns how long a client waits.
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
    TimeNs latency = now_ - request.arrived + options_.overhead;
    if (journeys_) {
      if (!ended_before(request, latency) && goes_on(slot)) return fleet_.answered(id, now_);
    }
    conclude(slot, latency);
    fleet_.answered(id, now_);
  }

  void conclude(Slot slot, TimeNs latency) {
    report(slot, latency);
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
    requests_.give_back(slot);
  }

  // Carries out the scheduler's decisions, then starts the workers that got rows. Runs at the end of every event.
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

  // Returns whether the next row at a worker is executed with the first one.
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

}  // namespace arlo::simulate
