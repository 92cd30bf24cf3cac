// What becomes of requests. Each is one row, which is answered once; cascades and pipelines say otherwise (journeys.h,
// roots.h).
#pragma once

#include <array>
#include <optional>

#include "simulate/checks.h"
#include "simulate/fleet.h"
#include "simulate/requests.h"

namespace arlo::simulate {

using dispatch::kNone;

// What the parts of a simulation share.
struct Core {
  explicit Core(const Options& given)
      : options(checked(given)),
        scheduler(given.dispatch),
        accounts(given.warmup, given.record),
        requests(given),
        fleet(scheduler, actions, requests, given.dispatch.batching != dispatch::Batching::kOne) {
    limits.fill({given.slo, given.timeout});
  }
  Core(const Core&) = delete;  // its parts refer to each other
  Core& operator=(const Core&) = delete;

  struct Limits {
    TimeNs slo;
    TimeNs timeout;
  };
  Options options;
  TimeNs now = 0;
  dispatch::Actions actions;
  dispatch::Scheduler scheduler;
  Accounts accounts;
  Requests requests;
  Fleet fleet;
  std::array<Limits, dispatch::kVariants> limits;
};

class Rows {
 public:
  explicit Rows(Core& core, std::optional<TokenQueries> tokens = {});
  virtual ~Rows() = default;
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  // Rows go on when others end, and those may go as batches.
  [[nodiscard]] virtual bool goes_on() const { return false; }
  // Time comes to `at`, before anything happens then.
  virtual void pass(TimeNs /*at*/) {}
  // A request has arrived.
  virtual void arrive(Slot slot);
  // The scheduler has learned that a row was executed: the client gets the answer, or the row goes on.
  virtual void answered(Slot slot);
  // A row ends without an answer of its stage; the scheduler knows it no more.
  virtual void unanswered(Slot slot, Outcome outcome, flow::Reason reason);
  // Workers have gone.
  virtual void find_ways() {}
  // Nothing can be served any more.
  virtual void give_up();

 protected:
  // As the request comes to the scheduler. `overhead` comes after the worker's answer; clients that wait for ever want
  // every answer.
  [[nodiscard]] dispatch::Arrival arrival(const Request& request) const;
  dispatch::Admitted admit(Slot slot, const dispatch::Arrival& arrival);
  // How long a client waits.
  [[nodiscard]] TimeNs patience(const Request& request) const;
  // The latency of an answer now.
  [[nodiscard]] TimeNs latency(const Request& request) const { return c_.now - request.arrived + c_.options.overhead; }
  // A request is answered, in time or not.
  void conclude(Slot slot, TimeNs latency);
  // A request leaves the system.
  void end(Slot slot, Outcome outcome, TimeNs latency = -1);

  Core& c_;

 private:
  std::optional<TokenQueries> tokens_;
};

}  // namespace arlo::simulate
