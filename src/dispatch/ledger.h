// Moves requests between their places and keeps all counts, keys and books in step. It makes no decisions.
#pragma once

#include <algorithm>
#include <span>

#include "dispatch/rule.h"
#include "dispatch/state.h"
#include "dispatch/timed.h"

namespace arlo::dispatch {

class Ledger {
 public:
  Ledger(State& state, const Rule& rule) : s_(state), rule_(rule) {}

  // `arrival.due` is what the request aims at, `arrival.client` its place in FairRanks.
  RequestHandle admit(Tag tag, const Arrival& arrival, Rank rank) {
    const RequestHandle h = admit(tag, arrival);
    Request& r = s_.requests[h];
    r.rank = rank;
    s_.ranks.admitted(r.client, rank);
    return h;
  }

  RequestHandle admit_overdue(Tag tag, const Arrival& arrival) {
    const RequestHandle h = admit(tag, arrival);
    s_.requests[h].rank = kFirstTry;
    make_overdue(h);
    return h;
  }

  // Marks it as overdue. It is not waiting now.
  void make_overdue(RequestHandle h) {
    Request& r = s_.requests[h];
    if (r.overdue) return;
    r.overdue = true;
    r.watched = false;  // what the heap of deadlines holds has its old rank
    const Rank rank = s_.overdue_ranks.next(r.client);
    s_.overdue_ranks.admitted(r.client, rank);
    r.rank = (r.rank & kFirstTry) | (rank & ~kFirstTry);
  }

  void emit(ActionKind kind, RequestHandle h, InstanceId id, std::int32_t level, Actions& out) const {
    const Request& r = s_.requests[h];
    const bool evicted = kind == ActionKind::kExpired && r.evicted;
    out.push_back({kind, h, r.tag, id, level, level > s_.ideal(r), kNone, kNone, evicted});
  }

  // The key of an instance follows its load; a draining one has none.
  void refresh_key(InstanceId id) {
    const Instance& x = s_.queue[id];
    if (x.state == InstanceState::kActive) s_.queue.update(id, rule_.key(x));
  }

  // -- waiting ------------------------------------------------------------------------------------------------------

  void begin_wait(RequestHandle h) {
    s_.requests[h].state = RequestState::kWaiting;
    ++s_.queued;
    ++s_.queued_of[s_.requests[h].variant()];
    s_.deadlines.wait_begins(s_.requests, h);
  }

  void end_wait(RequestHandle h) {
    --s_.queued;
    --s_.queued_of[s_.requests[h].variant()];
    s_.deadlines.wait_ends(s_.requests, h);
  }

  // A request that is in no FIFO, and not counted as waiting.
  void wait_in_line(RequestHandle h, std::int32_t level) {
    s_.requests[h].instance = kNone;
    const VariantId variant = s_.requests[h].variant();
    if (s_.shared() && s_.lines.total(variant) == 0) s_.shares.begins(variant);
    s_.lines.insert(s_.requests, level, h);
    s_.bodies.add(s_.requests[h], h, level);
    begin_wait(h);
  }

  void wait_overdue(RequestHandle h, std::int32_t level, TimeNs now) {
    s_.requests[h].instance = kNone;
    make_overdue(h);
    s_.overdue.insert(s_.requests, level, h, now);
    begin_wait(h);
  }

  void wait_bound(RequestHandle h, InstanceId id) {
    Instance& x = s_.queue[id];
    s_.requests[h].instance = id;
    ++x.queued;
    x.waiting.insert(s_.requests, h);
    begin_wait(h);
  }

  // Takes it out of its FIFO; it still counts as waiting.
  void take_out(RequestHandle h) {
    Request& r = s_.requests[h];
    if (r.instance != kNone) {
      unbind(h);
    } else if (r.overdue) {
      s_.overdue.erase(s_.requests, s_.ideal(r), h);
    } else {
      s_.bodies.remove(r, h);
      s_.lines.erase(s_.requests, s_.ideal(r), h);
    }
  }

  void unbind(RequestHandle h) {
    Request& r = s_.requests[h];
    Instance& x = s_.queue[r.instance];
    x.waiting.erase(s_.requests, h);
    --x.queued;
    if (s_.timed) timed::withdraw(x, r.share);
    refresh_key(r.instance);
    r.instance = kNone;
  }

  // Takes a waiting request away for good.
  void remove_waiting(RequestHandle h) {
    take_out(h);
    end_wait(h);
    s_.requests.give_back(h);
  }

  void expire_one(RequestHandle h, Actions& out) {
    emit(ActionKind::kExpired, h, kNone, s_.ideal(s_.requests[h]), out);
    remove_waiting(h);
  }

  // -- starting and finishing ---------------------------------------------------------------------------------------

  // Makes it wait for this instance.
  void charge(RequestHandle h, Instance& x, TimeNs now) {
    const Request& r = s_.requests[h];
    if (s_.timed) add(s_.requests[h], x, s_.cost(x, r).share(r.length), now);
  }

  // In no FIFO, and not charged: it starts alone. The key is left to the caller, here and below.
  void start_alone(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
    Instance& x = s_.queue[id];
    Request& r = s_.requests[h];
    const Bundle::Member& on = s_.cost(x, r).of(r.length);
    if (s_.timed) add(r, x, s_.batching() ? on.cost.alone(r.length) : on.cost.share(r.length), now);
    if (s_.shared()) {
      if (s_.lines.total(r.variant()) == 0) s_.shares.begins(r.variant());
      s_.shares.started(r.variant(), r.share);
    }
    begun(x);
    started(h, id, {on.runtime, kNone, level_of(on, r.variant())}, out);
  }

  // Starts rows that wait for this instance or in lines as one batch on a runtime of its bundle, as rows of variant
  // `as`: theirs, or another one of their body.
  void start_waiting(std::span<const RequestHandle> rows, InstanceId id, const Bundle::Member& on, VariantId as,
                     TimeNs now, Actions& out) {
    Instance& x = s_.queue[id];
    const VariantId variant = s_.requests[rows.front()].variant();
    std::int32_t longest = 0;
    TimeNs time = 0;
    for (const RequestHandle h : rows) {
      Request& r = s_.requests[h];
      longest = std::max(longest, r.length);
      if (r.instance == kNone) {
        take_out(h);
        if (!s_.batching()) charge(h, x, now);
      } else {
        x.waiting.erase(s_.requests, h);
        --x.queued;
        if (s_.batching() && s_.timed) timed::withdraw(x, r.share);
      }
      time += r.share;
      end_wait(h);
    }
    BatchId batch = kNone;
    if (s_.batching()) {
      time = on.cost.at(longest, static_cast<std::int32_t>(rows.size()));
      if (rows.size() > 1) {
        const TimeNs shares =
            s_.lines.total(variant) > 0 && as == variant ? shares_of(rows, s_.queue.cost(x, variant)) : 0;
        batch = s_.batches.take({static_cast<std::int32_t>(rows.size()), true, on.runtime, time, shares});
      }
      for (const RequestHandle h : rows) s_.requests[h].share = 0;  // the first stands for all
      if (s_.timed) add(s_.requests[rows.front()], x, time, now);
    }
    if (s_.shared()) s_.shares.started(variant, time);
    begun(x);
    const Begun all{on.runtime, batch, level_of(on, as)};
    for (const RequestHandle h : rows) {
      s_.requests[h].variant_ = as;
      started(h, id, all, out);
    }
  }

  // The worker has finished it; called before release().
  void observe(RequestHandle h, Verdict verdict, TimeNs now) {
    if (!s_.timed) return;
    const Request& r = s_.requests[h];
    Instance& x = s_.queue[r.instance];
    const Held& held = s_.queue.held(x, r.variant());
    const Bundle::Member& on = held.bundle.of(r.length);
    bool answered = verdict == Verdict::kAnswered;
    if (!s_.batching()) {
      if (answered) timed::observe(x, s_.queue.group(held.group), on.cost, r.length, now);
      return;
    }
    TimeNs time = 0, shares = 0;
    if (r.batch() == kNone) {
      time = on.cost.alone(r.length);
      if (s_.lines.total(r.variant()) > 0) shares = on.cost.share(r.length);
    } else {
      Batches::Batch& batch = s_.batches[r.batch()];
      answered = batch.answered = batch.answered && answered;
      if (batch.rows > 1) return;
      time = batch.time;
      shares = batch.shares;
    }
    if (!answered) return;
    // The duration of a line is learned while there is one: batches are not always full.
    const TimeNs took = timed::learn(x, time, now - x.since);
    if (shares > 0 && took > 0) timed::learn(s_.queue.group(held.group), shares, took);
  }

  // A started request no longer runs on its instance. False: others of its batch do.
  bool release(RequestHandle h, TimeNs now) {
    Request& r = s_.requests[h];
    Instance& x = s_.queue[r.instance];
    const BatchId batch = r.batch();
    x.started.erase(s_.requests, h);
    --s_.in_flight;
    --s_.in_flight_of[r.variant()];
    r.instance = kNone;
    r.avoid = kNone;
    if (batch != kNone) {
      if (--s_.batches[batch].rows > 0) {
        if (s_.timed) x.work -= r.share;
        return false;
      }
      s_.batches.give_back(batch);
    }
    --x.in_flight;
    if (s_.timed) timed::progress(x, r.share, now);
    return true;
  }

 private:
  [[nodiscard]] TimeNs shares_of(std::span<const RequestHandle> rows, const Bundle& bundle) const {
    TimeNs shares = 0;
    for (const RequestHandle h : rows) shares += bundle.share(s_.requests[h].length);
    return shares;
  }

  void add(Request& r, Instance& x, TimeNs time, TimeNs now) {
    r.share = timed::paced(x, time);
    timed::add(x, r.share, now);
  }

  void begun(Instance& x) const {
    ++x.in_flight;
    if (s_.any_overdue(x)) ++x.owed;
  }

  // What the rows of a batch have in common.
  struct Begun {
    RuntimeId runtime;
    BatchId batch;
    std::int32_t level;
  };
  [[nodiscard]] std::int32_t level_of(const Bundle::Member& on, VariantId variant) const {
    return s_.queue.ideal(variant, on.cost.max_length());
  }

  void started(RequestHandle h, InstanceId id, const Begun& begun, Actions& out) {
    Request& r = s_.requests[h];
    r.state = RequestState::kStarted;
    r.instance = id;
    r.avoid = begun.batch;
    ++s_.in_flight;
    ++s_.in_flight_of[r.variant()];
    s_.queue[id].started.push_back(s_.requests, h);
    (r.overdue ? s_.overdue_ranks : s_.ranks).started(r.rank);
    const bool demoted = begun.level > s_.ideal(r);
    out.push_back({ActionKind::kStart, h, r.tag, id, begun.level, demoted, begun.runtime, begun.batch});
  }

  // With no rank yet.
  RequestHandle admit(Tag tag, const Arrival& arrival) {
    const RequestHandle h = s_.requests.take();
    Request& r = s_.requests[h];
    r.tag = tag;
    r.deadline = arrival.deadline;
    r.aim = arrival.due;
    r.instance = kNone;
    r.avoid = kNone;
    r.length = arrival.length;
    r.variant_ = arrival.variant;
    r.client = static_cast<std::uint16_t>(arrival.client);
    r.overdue = false;
    r.evicted = false;
    r.trial = 0;
    s_.bodies.note(h, arrival);
    return h;
  }

  State& s_;
  const Rule& rule_;
};

}  // namespace arlo::dispatch
