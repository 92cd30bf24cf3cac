// arlo._core: the dispatch core in Python, for tests; the other files add the solvers, the simulator's event loop,
// flows and the tokenizer.
//
// Thin: every method is one call of arlo::dispatch::Scheduler, the actions it emitted come back as a list. Two things
// differ from C++. kNone and kNever are None. A call that C++ ignores because a handle or an id is in the wrong state
// raises ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "dispatch/scheduler.h"
#include "solve/tokens/chooser.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace arlo::dispatch {
namespace {

using Points = std::vector<std::tuple<std::int32_t, std::int32_t, TimeNs>>;

std::optional<std::uint32_t> optional_id(std::uint32_t id) {
  return id == kNone ? std::nullopt : std::optional<std::uint32_t>(id);
}

std::string repr(const Action& a) {
  static constexpr const char* kKinds[] = {"START", "EXPIRED", "LOST"};
  std::string text = std::string("Action(") + kKinds[static_cast<int>(a.kind)] +
                     ", handle=" + std::to_string(a.handle) + ", tag=" + std::to_string(a.tag);
  if (a.instance != kNone) text += ", instance=" + std::to_string(a.instance);
  return text + ", level=" + std::to_string(a.level) + (a.demoted ? ", demoted)" : ")");
}

void need_instance(const Scheduler& s, InstanceId id) {
  if (!s.present(id)) throw nb::value_error(("instance " + std::to_string(id) + " is not present").c_str());
}

void need_state(const Scheduler& s, RequestHandle handle, bool started, bool lost, const char* wanted) {
  const RequestState state = s.state(handle);
  if ((started && state == RequestState::kStarted) || (lost && state == RequestState::kLost)) return;
  throw nb::value_error(("request " + std::to_string(handle) + " is not " + wanted).c_str());
}

void set_tokens(Scheduler& s, const solve::tokens::TokenCounts& counts) {
  s.set_body(counts.variants, solve::tokens::make_chooser(counts));
}

void bind_values(nb::module_& m) {
  nb::enum_<Admission>(m, "Admission", "What became of an arrival or a retry.")
      .value("STARTED", Admission::kStarted, "A START action was emitted.")
      .value("QUEUED", Admission::kQueued, "Bound to an instance, or waiting for late binding.")
      .value("PARKED", Admission::kParked, "No active instance fits; waits for one to join.")
      .value("TOO_LONG", Admission::kTooLong, "Longer than every runtime, or below 1: refused.")
      .value("FULL", Admission::kFull, "max_queued reached: refused.")
      .value("TOO_LATE", Admission::kTooLate, "Predicted to finish after its deadline: refused.");
  nb::enum_<Verdict>(m, "Verdict", "How an execution ended.")
      .value("ANSWERED", Verdict::kAnswered, "With a good answer.")
      .value("FAILED", Verdict::kFailed, "In any other way: the time it took says nothing.");
  nb::enum_<ActionKind>(m, "ActionKind")
      .value("START", ActionKind::kStart, "Execute the request on the instance now.")
      .value("EXPIRED", ActionKind::kExpired,
             "It was waiting, and its deadline has come or cannot be met; the handle is gone.")
      .value("LOST", ActionKind::kLost, "Its instance left; call retry or abandon.");
  nb::enum_<RequestState>(m, "RequestState")
      .value("GONE", RequestState::kGone)
      .value("WAITING", RequestState::kWaiting)
      .value("STARTED", RequestState::kStarted)
      .value("LOST", RequestState::kLost);
  nb::enum_<InstanceState>(m, "InstanceState")
      .value("ACTIVE", InstanceState::kActive)
      .value("DRAINING", InstanceState::kDraining);

  nb::class_<Action>(m, "Action", "A decision of the scheduler.")
      .def_ro("kind", &Action::kind)
      .def_ro("handle", &Action::handle)
      .def_ro("tag", &Action::tag, "The caller's name for the request.")
      .def_prop_ro(
          "instance", [](const Action& a) { return optional_id(a.instance); }, "None for EXPIRED.")
      .def_ro("level", &Action::level, "The level it runs on; the ideal level for EXPIRED.")
      .def_ro("demoted", &Action::demoted, "The level is above the ideal one.")
      .def_prop_ro(
          "runtime", [](const Action& a) { return optional_id(a.runtime); }, "START: that executes it.")
      .def_prop_ro(
          "batch", [](const Action& a) { return optional_id(a.batch); },
          "START: the same number for the rows of one batch, which come one after the other; None: alone.")
      .def_ro("evicted", &Action::evicted, "EXPIRED: what is worth more goes before it.")
      .def("__repr__", &repr);

  nb::class_<InstanceView>(m, "InstanceView", "An instance as the scheduler sees it.")
      .def_ro("runtime", &InstanceView::runtime)
      .def_ro("level", &InstanceView::level)
      .def_ro("state", &InstanceView::state)
      .def_ro("in_flight", &InstanceView::in_flight, "Batches started, not finished.")
      .def_ro("queued", &InstanceView::queued, "Requests bound to it, not started.");
}

void bind_scheduler(nb::module_& m) {
  const Options defaults;
  nb::class_<Scheduler> scheduler(
      m, "Scheduler",
      "The request scheduler of section 3.4. Times are integers in ns from any fixed origin and never go back.\n\n"
      "Not thread-safe. `max_queued` bounds the requests that wait; `lambda_`, `alpha` and `max_peek` are those of\n"
      "Algorithm 1 and used by `rs` only. ValueError for values out of range.");
  scheduler.def(
      "__init__",
      [](Scheduler* self, std::string_view policy, double lambda, double alpha, std::int32_t max_peek,
         std::int32_t max_queued, std::string_view batching) {
        new (self)
            Scheduler(Options{parse_policy(policy), lambda, alpha, max_peek, max_queued, parse_batching(batching)});
      },
      "policy"_a = "rs", nb::kw_only(), "lambda_"_a = defaults.lambda, "alpha"_a = defaults.alpha,
      "max_peek"_a = defaults.max_peek, "max_queued"_a = defaults.max_queued, "batching"_a = "one");

  scheduler.def(
      "add_runtime",
      [](Scheduler& s, std::int32_t max_length, std::int32_t capacity, const Points& latency, std::int32_t max_batch,
         bool dynamic, VariantId variant) {
        return s.add_runtime({max_length, max_batch, capacity, dynamic, points(latency), variant});
      },
      "max_length"_a, "capacity"_a, "latency"_a, nb::kw_only(), "max_batch"_a = 1, "dynamic"_a = false, "variant"_a = 0,
      "Adds a runtime and returns its id. `max_length` in tokens, `capacity` is M (requests within the SLO),\n"
      "`latency` the measured points (length in tokens, batch in rows, ns); `variant`: the network that it runs.");

  scheduler
      .def("add_bundle", &Scheduler::add_bundle, "runtimes"_a,
           "Runtimes that a worker holds together; its id stands where a runtime's does.")
      .def(
          "join",
          [](Scheduler& s, RuntimeId runtime, std::int32_t limit, TimeNs now) {
            Actions out;
            const InstanceId id = s.join(runtime, limit, now, out);
            return std::make_pair(id, std::move(out));
          },
          "runtime"_a, "inflight_limit"_a, "now"_a, "A new instance; its id is the smallest one free.")
      .def(
          "drain",
          [](Scheduler& s, InstanceId id, TimeNs now) {
            need_instance(s, id);
            Actions out;
            const bool gone = s.drain(id, now, out);
            return std::make_pair(gone, std::move(out));
          },
          "instance"_a, "now"_a, "No further requests for it. True when it is gone already.")
      .def(
          "leave",
          [](Scheduler& s, InstanceId id, TimeNs now) {
            need_instance(s, id);
            Actions out;
            s.leave(id, now, out);
            return out;
          },
          "instance"_a, "now"_a, "Gone at once; what it executed comes back as LOST.");

  scheduler
      .def(
          "arrive",
          [](Scheduler& s, Tag tag, std::int32_t length, TimeNs now, std::optional<TimeNs> deadline,
             std::optional<TimeNs> due, std::uint64_t client, bool bulk, VariantId variant, double utility,
             std::uint32_t kind) {
            Actions out;
            Arrival arrival{length, due.value_or(kNever), deadline.value_or(kNever), client, bulk, variant};
            arrival.utility = utility;
            arrival.kind = kind;
            const Admitted admitted = s.arrive(tag, arrival, now, out);
            return std::make_tuple(admitted.admission, optional_id(admitted.handle), std::move(out));
          },
          "tag"_a, "length"_a, "now"_a, "deadline"_a = nb::none(), nb::kw_only(), "due"_a = nb::none(), "client"_a = 0,
          "bulk"_a = false, "variant"_a = 0, "utility"_a = 1.0, "kind"_a = 0,
          "A request of `length` tokens. The handle is None when it is refused.\n\n"
          "`due`: an answer after it is late; `deadline`: after it it is worth nothing; `client`: who asks (0: "
          "unnamed);\n"
          "`bulk`: of the class that fills what others leave; `variant`: the network that it is for; `utility`, "
          "`kind`:\n"
          "of a body's (set_tokens).")
      .def(
          "finish",
          [](Scheduler& s, RequestHandle handle, TimeNs now, Verdict verdict) {
            need_state(s, handle, true, true, "started or lost");
            Actions out;
            s.finish(handle, verdict, now, out);
            return out;
          },
          "handle"_a, "now"_a, "verdict"_a = Verdict::kAnswered, "The worker is through with a started request.")
      .def(
          "cancel",
          [](Scheduler& s, RequestHandle handle, Tag tag, TimeNs now) {
            Actions out;
            const bool removed = s.cancel(handle, tag, now, out);
            return std::make_pair(removed, std::move(out));
          },
          "handle"_a, "tag"_a, "now"_a, "True: it was waiting and is gone. False: it was not waiting.")
      .def(
          "retry",
          [](Scheduler& s, RequestHandle handle, std::optional<InstanceId> avoid, TimeNs now) {
            need_state(s, handle, true, true, "started or lost");
            Actions out;
            const Admission admission = s.retry(handle, avoid.value_or(kNone), now, out);
            return std::make_pair(admission, std::move(out));
          },
          "handle"_a, "avoid"_a.none(), "now"_a, "Schedules a failed or lost request again, ahead of what waits.")
      .def(
          "abandon",
          [](Scheduler& s, RequestHandle handle) {
            need_state(s, handle, false, true, "lost");
            s.abandon(handle);
          },
          "handle"_a, "A lost request is given up.")
      .def(
          "expire",
          [](Scheduler& s, TimeNs now) {
            Actions out;
            s.expire(now, out);
            return out;
          },
          "now"_a, "Ends the waiting requests whose deadline is at or before `now`.")
      .def(
          "next_deadline",
          [](const Scheduler& s) {
            const TimeNs at = s.next_deadline();
            return at == kNever ? std::nullopt : std::optional<TimeNs>(at);
          },
          "Earliest deadline of a waiting request, in ns; None when there is none. May be early, never late.");

  scheduler.def("level_max_length", &Scheduler::level_max_length, "level"_a, "In tokens; 0 for no such level.")
      .def("ideal_level", &Scheduler::ideal_level, "length"_a, "variant"_a = 0, "-1 when no level is long enough.")
      .def("set_tokens", &set_tokens, "counts"_a,
           "Variants that are a body: a batch gets one of them when it starts; under `late` with batches.")
      .def("clear_tokens", &Scheduler::clear_body, "variant"_a, "By its first variant: it is no body any more.")
      .def("queued", &Scheduler::queued, "Requests that wait, parked ones included.")
      .def("parked", &Scheduler::parked, "Requests that wait and that no active instance fits.")
      .def("overdue", &Scheduler::overdue, "Requests that wait and can no longer be on time.")
      .def("in_flight", &Scheduler::in_flight, "Requests that are executing.")
      .def("instances", &Scheduler::instances, "Instances present, draining ones included.")
      .def("present", &Scheduler::present, "instance"_a)
      .def(
          "view",
          [](const Scheduler& s, InstanceId id) {
            need_instance(s, id);
            return s.view(id);
          },
          "instance"_a)
      .def("state", &Scheduler::state, "handle"_a)
      .def("hold", &Scheduler::hold, "Until release(), requests that arrive only wait: they come together.")
      .def(
          "release",
          [](Scheduler& s, TimeNs now) {
            Actions out;
            s.release(now, out);
            return out;
          },
          "now"_a, "What came together starts as batches.")
      .def(
          "forecast",
          [](Scheduler& s, const std::vector<std::int32_t>& lengths, TimeNs now, VariantId variant) {
            const RowsForecast forecast = s.forecast(lengths, variant, now);
            const auto known = [](TimeNs time) { return time == kNever ? std::nullopt : std::optional<TimeNs>(time); };
            return std::make_pair(known(forecast.alone), known(forecast.behind));
          },
          "lengths"_a, "now"_a, "variant"_a = 0,
          "Time in ns until all rows of a request that is to come are answered: alone, and behind all that waits. "
          "None:\n"
          "no active instance fits one of them.")
      .def("cost", &Scheduler::cost, "runtime"_a, "length"_a, "batch"_a = 1,
           "Predicted time in ns of `batch` rows of `length` tokens.");
}

}  // namespace
}  // namespace arlo::dispatch

NB_MODULE(_core, m) {
  m.doc() = "Arlo's core: the request scheduler that the gateway and the simulator share, and the allocation solver.";
  arlo::dispatch::bind_values(m);
  arlo::simulate::bind_tokens(m);
  arlo::dispatch::bind_scheduler(m);
  arlo::solve::bind(m);
  arlo::flow::bind(m);
  arlo::flow::pipeline::bind(m);
  arlo::simulate::bind(m);
  arlo::text::bind(m);
}
