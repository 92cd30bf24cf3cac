// A pipeline on a scheduler, with what each says at hand, for tests and the fuzzer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/pipeline/pipeline.h"

namespace arlo::flow::pipeline {

// A chain, or a tree by `edges`: variants are numbered stage by stage, as the scheduler's.
inline VariantSpec variant(std::uint16_t id, double accuracy, TimeNs time) {
  return {.id = id, .accuracy = accuracy, .least = time, .work = static_cast<double>(time) / 1e9};
}

class Rig {
 public:
  explicit Rig(const Spec& spec, dispatch::Batching batching = dispatch::Batching::kOne)
      : scheduler({.policy = dispatch::Policy::kLate, .batching = batching}) {
    for (const StageSpec& stage : spec.stages) {
      for (const VariantSpec& v : stage.variants) {
        runtimes.push_back(scheduler.add_runtime(
            {.max_length = 512, .max_batch = 1, .capacity = 100, .latency = {{512, 1, v.least}}, .variant = v.id}));
      }
    }
    pipeline = std::make_unique<Pipeline>(spec, scheduler);
  }

  dispatch::InstanceId join(std::size_t variant) { return scheduler.join(runtimes[variant], 1, now, actions); }

  RootId arrive(TimeNs slo = kNever, double utility = 1, double min_accuracy = 0, std::uint64_t may_take = ~0ULL) {
    const TimeNs due = slo == kNever ? kNever : now + slo;
    const RootId root = pipeline->arrive({.tag = tags++,
                                          .length = 10,
                                          .due = due,
                                          .deadline = due,
                                          .utility = utility,
                                          .min_accuracy = min_accuracy,
                                          .may_take = may_take},
                                         now);
    walk();
    return root;
  }

  // Ends the visit that runs on an instance, with so many children on each edge of its stage.
  void finish(dispatch::InstanceId instance, const std::vector<std::int32_t>& counts = {}) {
    const auto found = running.find(instance);
    if (found == running.end()) throw std::logic_error("nothing runs there");
    const Run run = found->second;
    running.erase(found);
    ++finished;
    scheduler.finish(run.handle, dispatch::Verdict::kAnswered, now, actions);
    if (run.visit == kNone || visits[run.tag] == kNone) {
      walk();
      return;
    }
    std::vector<Children> children;
    first_part = parts;
    finishing = run.visit;
    const auto& stage = pipeline->tree().stage(pipeline->stage(run.visit));
    auto out = stage.out;
    out.insert(out.end(), stage.beside.begin(), stage.beside.end());
    for (std::size_t i = 0; i < std::min(counts.size(), out.size()); ++i) {
      const bool joins = pipeline->spec().edges[at(out[i].edge)].join >= 0;
      children.push_back({out[i].edge, 10, joins ? std::min(counts[i], 1) : counts[i], parts});
      if (joins && counts[i] > 0) to_join[parts] = roots[run.tag];
      ++parts;
    }
    visits[run.tag] = kNone;
    pipeline->finish(run.visit, children, now);
    walk();
    finishing = kNone;
  }

  void expire() {
    scheduler.expire(now, actions);
    walk();
  }

  // Its worker has died, or drains: what ran there is retried, or fails; what now fits nowhere chooses again.
  void leave(dispatch::InstanceId instance, bool retries) {
    retries_ = retries;
    scheduler.leave(instance, now, actions);
    walk();
    choose_again();
  }
  void drain(dispatch::InstanceId instance) {
    scheduler.drain(instance, now, actions);
    walk();
    choose_again();
  }

  void walk() {
    read_actions();
    do {
      for (Step step; pipeline->next(now, step);) carry_out(step);
      read_actions();
    } while (more);
  }

  [[nodiscard]] std::vector<Step> of(Step::Kind kind) const {
    std::vector<Step> found;
    for (const Step& s : steps) {
      if (s.kind == kind) found.push_back(s);
    }
    return found;
  }

  dispatch::Scheduler scheduler;
  dispatch::Actions actions;
  std::unique_ptr<Pipeline> pipeline;
  std::vector<dispatch::RuntimeId> runtimes;
  TimeNs now = 0;
  std::uint64_t tags = 0;
  std::vector<Step> steps;
  struct Run {
    dispatch::RequestHandle handle;
    VisitId visit;
    std::uint64_t tag;
  };
  std::map<dispatch::InstanceId, Run> running;
  std::uint64_t started = 0;                       // of these, all have finished, were lost, or run
  std::uint64_t finished = 0;                      //
  std::uint64_t lost = 0;                          //
  std::uint64_t too_late = 0;                      // starts after the deadline
  std::uint64_t parts = 0;                         // tags of children so far
  std::map<std::uint64_t, std::uint64_t> to_join;  // of these, parts that no row was made of yet: tag of their root
  std::uint64_t joined = 0;
  bool joins_fail = false;  // rows cannot be made
  bool unsound = false;     // a part went into two rows, or into that of another root, or into none

 private:
  void choose_again() {
    for (std::size_t tag = 0, end = visits.size(); tag < end; ++tag) {  // those that are added have just chosen
      if (visits[tag] == kNone || scheduler.state(handles[tag]) != dispatch::RequestState::kWaiting) continue;
      if (scheduler.fits_any(10, variants[tag])) continue;
      scheduler.cancel(handles[tag], tag, now, actions);
      pipeline->again(std::exchange(visits[tag], kNone), now);
      walk();
    }
  }

  void lose(const dispatch::Action& a) {
    ++lost;
    const auto at = running.find(a.instance);
    if (at != running.end() && at->second.tag == a.tag) running.erase(at);
    if (visits[a.tag] != kNone && retries_) {
      scheduler.retry(a.handle, kNone, now, actions);
    } else {
      scheduler.abandon(a.handle);
      if (visits[a.tag] != kNone) pipeline->failed(std::exchange(visits[a.tag], kNone), now);
    }
    more = true;
  }

  void carry_out(const Step& step) {
    steps.push_back(step);
    const bool first = step.visit == std::exchange(finishing, kNone);
    if (step.kind == Step::Kind::kJoin) {
      const auto made_of = pipeline->parts(step.visit);
      unsound = unsound || made_of.empty();
      for (const auto& part : made_of) {
        const auto found = to_join.find(part.tag);
        unsound = unsound || found == to_join.end() || found->second != step.tag ||
                  pipeline->spec().edges[at(part.edge)].to != step.stage;
        if (found != to_join.end()) to_join.erase(found);
      }
      ++joined;
      if (joins_fail) {
        pipeline->failed(step.visit, now);
      } else {
        pipeline->joined(step.visit, 10, 0, now);
      }
    } else if (step.kind == Step::Kind::kDrop) {
      // For its budget, or too many children: then nothing has come of it.
      if (first) to_join.erase(to_join.lower_bound(first_part), to_join.end());
    } else if (step.kind == Step::Kind::kExit) {
      for (auto part = to_join.begin(); part != to_join.end();) {
        if (part->second != step.tag) {
          ++part;
          continue;
        }
        unsound = unsound || !step.failed;
        part = to_join.erase(part);
      }
    } else if (step.kind == Step::Kind::kEnter) {
      const auto tag = static_cast<dispatch::Tag>(visits.size());
      visits.push_back(step.visit);
      handles.push_back(kNone);
      deadlines.push_back(step.deadline);
      variants.push_back(step.variant);
      roots.push_back(step.tag);
      tag_of[step.visit] = tag;
      const auto admitted = scheduler.arrive(tag,
                                             {.length = step.length,
                                              .due = step.due,
                                              .deadline = step.deadline,
                                              .variant = step.variant,
                                              .follows = step.follows},
                                             now, actions);
      handles[tag] = admitted.handle;
      if (admitted.handle == kNone) {
        visits[tag] = kNone;
        pipeline->refused(step.visit, DropReason::kDeadline, now);
      }
    } else if (step.kind == Step::Kind::kCancel) {
      const auto tag = tag_of.at(step.visit);
      if (std::exchange(visits[tag], kNone) == kNone) return;  // it has ended since
      scheduler.cancel(handles[tag], tag, now, actions);
    }
  }

  void read_actions() {
    more = false;
    dispatch::Actions seen;
    seen.swap(actions);
    for (const dispatch::Action& a : seen) {
      if (a.kind == dispatch::ActionKind::kStart) {
        running[a.instance] = {a.handle, visits[a.tag], a.tag};
        ++started;
        too_late += now >= deadlines[a.tag] ? 1 : 0;
      } else if (a.kind == dispatch::ActionKind::kLost) {
        lose(a);
      } else if (a.kind == dispatch::ActionKind::kExpired && visits[a.tag] != kNone) {
        pipeline->refused(visits[a.tag], DropReason::kDeadline, now);
        visits[a.tag] = kNone;
        more = true;
      }
    }
  }

  bool more = false;
  bool retries_ = false;
  VisitId finishing = kNone;  // until the next step
  std::uint64_t first_part = 0;
  std::vector<VisitId> visits;  // by the scheduler's tag; kNone: it has ended
  std::vector<dispatch::RequestHandle> handles;
  std::vector<TimeNs> deadlines;
  std::vector<dispatch::VariantId> variants;
  std::vector<std::uint64_t> roots;
  std::map<VisitId, std::uint64_t> tag_of;
};

// Random trees under random loads, with clients that go, plans that change, and workers that come, drain and die.
template <typename Random>  // gives numbers of 64 bits
struct Journeys {
  explicit Journeys(Random source) : random(std::move(source)) {
    Spec spec;
    spec.router = static_cast<Router>(random() % 3);
    spec.drop = static_cast<Drop>(random() % 5);
    spec.on_drop = static_cast<OnDrop>(random() % 2);
    spec.max_open = random() % 2 == 0 ? 8 : 100;
    const auto stages = static_cast<std::int32_t>(1 + random() % 10);
    std::uint16_t id = 0;
    for (std::int32_t s = 0; s < stages; ++s) {
      spec.stages.emplace_back();
      for (std::uint64_t v = 0; v < 1 + random() % (stages > 6 ? 2 : 3); ++v) {
        spec.stages.back().variants.push_back(
            variant(id++, .5 + .1 * static_cast<double>(random() % 5), static_cast<TimeNs>(1 + random() % 5) * kMs));
      }
      if (s == 0) continue;
      spec.edges.push_back({static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(s)), s, {}, 0});
      const auto from = static_cast<std::size_t>(spec.edges.back().from);
      spec.edges.back().factor.assign(spec.stages[from].variants.size(), 1.5);
      spec.edges.back().falls_back = random() % 3 == 0;
    }
    if (random() % 2 == 0) join_some(spec);
    rig = std::make_unique<Rig>(spec, random() % 2 == 0 ? dispatch::Batching::kOne : dispatch::Batching::kFill);
    for (std::size_t v = 0; v < id; ++v) {
      if (random() % 4 != 0) workers.push_back(rig->join(v));
    }
    plan(1);
  }

  // Some edges join what comes of an earlier stage, and others lead to the same head.
  void join_some(Spec& spec) {
    const auto kept = [&](const Spec& tried) {
      try {
        validate(tried);
        spec = tried;
      } catch (const std::invalid_argument&) {
        return false;
      }
      return true;
    };
    for (std::size_t e = 0, all = spec.edges.size(); e < all; ++e) {
      const auto tail = static_cast<std::uint64_t>(spec.edges[e].from);
      if (tail == 0 || random() % 3 == 0) continue;
      Spec tried = spec;
      tried.edges[e].join = static_cast<std::int32_t>(random() % tail);
      for (auto& edge : tried.edges) edge.falls_back = edge.falls_back && random() % 4 == 0;
      if (!kept(tried)) continue;
      for (std::int32_t other = 1; other < spec.edges[e].to; ++other) {
        if (other == spec.edges[e].from) continue;
        tried = spec;
        const auto factor = std::vector<double>(spec.stages[at(other)].variants.size(), 0);
        tried.edges.push_back({other, spec.edges[e].to, factor, 0, false, spec.edges[e].join});
        kept(tried);
      }
    }
  }

  void plan(std::uint64_t seed) {
    Plan plan;
    plan.version = seed;
    plan.demand = 100;
    plan.price = .1 * static_cast<double>(seed);
    for (Node n = 0; n < rig->pipeline->tree().nodes(); ++n)
      plan.share.push_back(static_cast<double>(1 + n * seed % 3));
    plan.budget.assign(static_cast<std::size_t>(rig->pipeline->tree().variants()), 6 * kMs);
    rig->pipeline->apply(plan, rig->now);
  }

  // A worker comes, drains or dies, or there is another plan.
  void change() {
    const std::uint64_t what = random() % 4;
    if (what == 0) {
      plan(random() % 5);
    } else if (what == 1 || workers.empty()) {
      workers.push_back(rig->join(random() % rig->runtimes.size()));
      rig->walk();
    } else {
      const std::size_t at = random() % workers.size();
      const dispatch::InstanceId id = workers[at];
      workers[at] = workers.back();
      workers.pop_back();
      if (what == 2) {
        rig->leave(id, random() % 2 == 0);
      } else {
        rig->drain(id);
      }
    }
  }

  // No more arrivals, and workers for everything: all that is open ends. False: it does not.
  bool end() {
    rig->joins_fail = false;
    for (std::size_t v = 0; v < rig->runtimes.size(); ++v) rig->join(v);
    for (int i = 0; i < 100'000 && rig->pipeline->roots() > 0; ++i) {
      rig->now += kMs;
      rig->expire();
      while (!rig->running.empty()) rig->finish(rig->running.begin()->first);
    }
    while (!rig->running.empty()) rig->finish(rig->running.begin()->first);
    look();
    return rig->pipeline->roots() == 0;
  }

  // What must hold at any time: no root has ended twice or is lost, nor is a start.
  [[nodiscard]] bool sound() const {
    for (const auto& [tag, times] : exited) {
      if (times != 1) return false;
    }
    const auto open_roots = static_cast<std::uint64_t>(rig->pipeline->roots());
    return exited.size() + open_roots == arrived && rig->too_late == 0 && !rig->unsound && worth_adds_up &&
           rig->started == rig->finished + rig->lost + rig->running.size();
  }

  void step() {
    rig->now += static_cast<TimeNs>(random() % static_cast<std::uint64_t>(kMs));
    if (random() % 2 == 0 && !rig->running.empty()) {
      auto at = rig->running.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % rig->running.size()));
      rig->joins_fail = random() % 16 == 0;
      rig->finish(at->first, {static_cast<std::int32_t>(random() % 4), static_cast<std::int32_t>(random() % 2),
                              static_cast<std::int32_t>(random() % 2)});
    } else if (random() % 10 == 0) {
      rig->expire();
    } else if (random() % 20 == 0 && !open.empty()) {
      rig->pipeline->cancel(open.back(), rig->now);
      rig->walk();
    } else if (random() % 16 == 0) {
      change();
    } else {
      open.assign(1, rig->arrive(random() % 4 == 0 ? kNever : 20 * kMs));
      ++arrived;
    }
    look();
  }

  void look() {
    for (; seen < rig->steps.size(); ++seen) {
      const Step& s = rig->steps[seen];
      entered += s.kind == Step::Kind::kEnter && s.from < 0 ? 1 : 0;
      if (s.kind == Step::Kind::kExit) {
        exited[s.tag] += 1;
        const bool whole = s.failed || s.dropped > 0 || std::abs(s.served - 1) < 1e-9;
        worth_adds_up = worth_adds_up && whole && s.served < 1 + 1e-9 && s.accuracy < 1 + 1e-9;
        if (!open.empty() && open.back() == s.root) open.clear();
      }
    }
  }

  Random random;
  std::unique_ptr<Rig> rig;
  std::vector<RootId> open;                   // the last one, while it is
  std::vector<dispatch::InstanceId> workers;  // that neither drain nor are gone
  std::map<std::uint64_t, int> exited;
  bool worth_adds_up = true;
  std::size_t seen = 0;
  std::uint64_t arrived = 0;
  std::uint64_t entered = 0;
};

}  // namespace arlo::flow::pipeline
