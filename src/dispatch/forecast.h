// Predicts when a request would be answered: the estimates of timed.h for an instance with one request more.
#pragma once

#include <span>
#include <vector>

#include "dispatch/state.h"
#include "dispatch/timed.h"

namespace arlo::dispatch {

// The part of the SLO for which overdue or bulk rows may occupy an instance.
inline constexpr TimeNs kPatience = 4;

class Forecast {
 public:
  explicit Forecast(State& state) : s_(state) {}

  // From now on the books are kept, under every policy.
  void begin(TimeNs now) {
    if (s_.timed) return;
    s_.timed = true;
    for (InstanceId id = 0; id < s_.queue.ids_end(); ++id) {
      if (!s_.queue.present(id)) continue;
      Instance& x = s_.queue[id];
      x.work = 0;
      x.since = now;
      for (const Fifo* fifo : {&x.started, &x.waiting}) {
        for (RequestHandle at = fifo->head; at != kNone; at = s_.requests[at].next) {
          s_.requests[at].share = timed::paced(x, s_.cost(x, s_.requests[at]).share(s_.requests[at].length));
          x.work += s_.requests[at].share;
        }
      }
      x.free = x.first = now + x.work;
    }
  }

  // A request's own time on an instance.
  [[nodiscard]] TimeNs alone(const Instance& x, const Request& r) const {
    return timed::paced(x, s_.cost(x, r).alone(r.length));
  }

  // Its finish when it is the next one to start there.
  [[nodiscard]] TimeNs next_on(const Instance& x, VariantId variant, std::int32_t length, TimeNs now) const {
    return start_on(x, now) + timed::paced(x, s_.queue.cost(x, variant).alone(length));
  }
  [[nodiscard]] TimeNs next_on(const Instance& x, const Request& r, TimeNs now) const {
    return next_on(x, r.variant(), r.length, now);
  }

  // Its finish when it is the first row of the next batch there, which should not be small where many wait.
  [[nodiscard]] TimeNs turn_on(const Instance& x, const Request& r, TimeNs now) const {
    if (!s_.batching() || r.trial != 0) return next_on(x, r, now);
    const bool bound = r.instance != kNone;
    const std::int32_t in_line = bound ? x.queued : s_.lines[s_.ideal(r)].count;
    const std::int32_t in_all = bound ? x.queued : s_.lines.total(r.variant());
    const Bundle& bundle = s_.cost(x, r);
    const TimeNs time = bundle.at(r.length, bundle.turn_rows(r.length, in_line, in_all));
    return start_on(x, now) + timed::paced(x, time);
  }

  // Returns when the instance could begin new work.
  [[nodiscard]] TimeNs start_on(const Instance& x, TimeNs now) const {
    return timed::started_until(x, s_.requests, now);
  }

  // Its finish when it is bound there with its rank.
  [[nodiscard]] TimeNs bound_to(const Instance& x, const Request& r, TimeNs now) const {
    if (x.has_room()) return next_on(x, r, now);
    TimeNs free = timed::free_at(x, s_.requests, now);
    for (RequestHandle at = x.waiting.tail; at != kNone && s_.requests[at].rank > r.rank; at = s_.requests[at].prev) {
      free -= s_.requests[at].share;
    }
    return std::max(free, now) + alone(x, r);
  }

  // Of rows that arrive together: Scheduler::forecast().
  RowsForecast rows(std::span<const std::int32_t> lengths, VariantId variant, TimeNs now);

 private:
  // The instances whose longest runtime is that of a level, and work that fits no shorter ones. Times of the profile.
  struct Home {
    double own = 0;         // of the rows
    double ahead = 0;       // of all that waits or runs
    double speed = 0;       // of its instances: 1 for each that is as fast as the profile
    double until = 0;       // when they are done
    std::int32_t rows = 0;  // of this ideal level
  };
  // A row's time in the batches that bulk rows form.
  [[nodiscard]] double each(const Held& held, std::int32_t length) const;
  // Returns when the last of them is done. Longer instances help shorter ones when their own work is done.
  double until(VariantId variant, bool ahead);

  State& s_;
  std::vector<Home> homes_;  // by level of the variant
};

}  // namespace arlo::dispatch
