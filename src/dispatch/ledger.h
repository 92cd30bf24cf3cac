// Moves requests between the places where they can be, and keeps all counts, keys and books in step. It decides
// nothing.
#pragma once

#include "dispatch/policies/rule.h"
#include "dispatch/policies/timed.h"
#include "dispatch/state.h"

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

  // From now on it stands among those that are overdue. It does not wait now.
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
    out.push_back({kind, h, r.tag, id, level, level > s_.ideal(r)});
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
    s_.deadlines.wait_begins(s_.requests, h);
  }

  void end_wait(RequestHandle h) {
    --s_.queued;
    s_.deadlines.wait_ends(s_.requests, h);
  }

  // A request that is in no FIFO, and not counted as waiting.
  void wait_in_line(RequestHandle h, std::int32_t level) {
    s_.requests[h].instance = kNone;
    s_.lines.insert(s_.requests, level, h);
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

  // Out of its FIFO; still counted as waiting.
  void take_out(RequestHandle h) {
    Request& r = s_.requests[h];
    if (r.instance != kNone) {
      unbind(h);
    } else if (r.overdue) {
      s_.overdue.erase(s_.requests, s_.ideal(r), h);
    } else {
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

  void charge(RequestHandle h, Instance& x, TimeNs now) {
    if (!s_.timed) return;
    Request& r = s_.requests[h];
    r.share = timed::paced(x, s_.queue.cost(x.runtime).share(r.length));
    timed::add(x, r.share, now);
  }

  // The request is charged to the instance already, and in no FIFO. The key is left to the caller.
  void start(RequestHandle h, InstanceId id, Actions& out) {
    Request& r = s_.requests[h];
    Instance& x = s_.queue[id];
    r.state = RequestState::kStarted;
    r.instance = id;
    ++x.in_flight;
    ++s_.in_flight;
    if (s_.overdue.total() > 0) ++x.owed;
    x.started.push_back(s_.requests, h);
    (r.overdue ? s_.overdue_ranks : s_.ranks).started(r.rank);
    emit(ActionKind::kStart, h, id, x.level, out);
  }

  // Waits in its instance's FIFO, or in a line, and starts.
  void start_waiting(RequestHandle h, InstanceId id, TimeNs now, Actions& out) {
    Request& r = s_.requests[h];
    Instance& x = s_.queue[id];
    if (r.instance == kNone) {
      take_out(h);
      charge(h, x, now);
    } else {
      x.waiting.erase(s_.requests, h);
      --x.queued;
    }
    end_wait(h);
    start(h, id, out);
  }

  void observe(RequestHandle h, TimeNs now) {
    if (!s_.timed) return;
    const Request& r = s_.requests[h];
    Instance& x = s_.queue[r.instance];
    timed::observe(x, s_.queue.group(x.group), s_.queue.cost(x.runtime), r.length, now);
  }

  // A started request no longer runs on its instance. The key is left to the caller.
  void release(RequestHandle h, TimeNs now) {
    Request& r = s_.requests[h];
    Instance& x = s_.queue[r.instance];
    x.started.erase(s_.requests, h);
    --x.in_flight;
    --s_.in_flight;
    if (s_.timed) timed::progress(x, r.share, now);
    r.instance = kNone;
  }

 private:
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
    r.client = static_cast<std::uint16_t>(arrival.client);
    r.overdue = false;
    return h;
  }

  State& s_;
  const Rule& rule_;
};

}  // namespace arlo::dispatch
