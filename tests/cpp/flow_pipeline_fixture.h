// A pipeline on a scheduler, with what each says at hand, for tests and the fuzzer.
#pragma once

#include <algorithm>
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

inline constexpr TimeNs kMs = 1'000'000;

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

  RootId arrive(TimeNs slo = kNever, double utility = 1) {
    const TimeNs due = slo == kNever ? kNever : now + slo;
    const RootId root =
        pipeline->arrive({.tag = tags++, .length = 10, .due = due, .deadline = due, .utility = utility}, now);
    walk();
    return root;
  }

  // Ends the visit that runs on an instance, with so many children on each edge of its stage.
  void finish(dispatch::InstanceId instance, const std::vector<std::int32_t>& counts = {}) {
    const auto found = running.find(instance);
    if (found == running.end()) throw std::logic_error("nothing runs there");
    const Run run = found->second;
    running.erase(found);
    scheduler.finish(run.handle, dispatch::Verdict::kAnswered, now, actions);
    if (run.visit == kNone || visits[run.tag] == kNone) {
      walk();
      return;
    }
    std::vector<Children> children;
    const auto& out = pipeline->tree().stage(pipeline->stage(run.visit)).out;
    for (std::size_t i = 0; i < std::min(counts.size(), out.size()); ++i)
      children.push_back({out[i].edge, 10, counts[i]});
    visits[run.tag] = kNone;
    pipeline->finish(run.visit, children, now);
    walk();
  }

  void expire() {
    scheduler.expire(now, actions);
    walk();
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

 private:
  void carry_out(const Step& step) {
    steps.push_back(step);
    if (step.kind == Step::Kind::kEnter) {
      const auto tag = static_cast<dispatch::Tag>(visits.size());
      visits.push_back(step.visit);
      handles.push_back(kNone);
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
      visits[tag] = kNone;
      for (const dispatch::Action& a : actions) {
        if (a.kind == dispatch::ActionKind::kExpired && a.tag == tag) return;  // its handle may be another's now
      }
      scheduler.cancel(handles[tag], now, actions);
    }
  }

  void read_actions() {
    more = false;
    dispatch::Actions seen;
    seen.swap(actions);
    for (const dispatch::Action& a : seen) {
      if (a.kind == dispatch::ActionKind::kStart) {
        running[a.instance] = {a.handle, visits[a.tag], a.tag};
      } else if (a.kind == dispatch::ActionKind::kExpired && visits[a.tag] != kNone) {
        pipeline->refused(visits[a.tag], DropReason::kDeadline, now);
        visits[a.tag] = kNone;
        more = true;
      }
    }
  }

  bool more = false;
  std::vector<VisitId> visits;  // by the scheduler's tag; kNone: it has ended
  std::vector<dispatch::RequestHandle> handles;
  std::map<VisitId, std::uint64_t> tag_of;
};

// Random trees under random loads, with clients that go and workers that come and leave.
template <typename Random>  // gives numbers of 64 bits
struct Journeys {
  explicit Journeys(Random source) : random(std::move(source)) {
    Spec spec;
    spec.router = static_cast<Router>(random() % 3);
    spec.drop = static_cast<Drop>(random() % 5);
    spec.on_drop = static_cast<OnDrop>(random() % 2);
    spec.max_open = random() % 2 == 0 ? 8 : 100;
    const auto stages = static_cast<std::int32_t>(1 + random() % 4);
    std::uint16_t id = 0;
    for (std::int32_t s = 0; s < stages; ++s) {
      spec.stages.emplace_back();
      for (std::uint64_t v = 0; v < 1 + random() % 3; ++v) {
        spec.stages.back().variants.push_back(
            variant(id++, .5 + .1 * static_cast<double>(random() % 5), static_cast<TimeNs>(1 + random() % 5) * kMs));
      }
      if (s == 0) continue;
      spec.edges.push_back({static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(s)), s, {}, 0});
      const auto from = static_cast<std::size_t>(spec.edges.back().from);
      spec.edges.back().factor.assign(spec.stages[from].variants.size(), 1.5);
    }
    rig = std::make_unique<Rig>(spec, random() % 2 == 0 ? dispatch::Batching::kOne : dispatch::Batching::kFill);
    for (std::size_t v = 0; v < id; ++v) {
      if (random() % 4 != 0) rig->join(v);
    }
    Plan plan;
    plan.demand = 100;
    plan.price = .1;
    plan.share.assign(rig->pipeline->tree().nodes(), 1);
    plan.budget.assign(id, 6 * kMs);
    rig->pipeline->apply(plan, 0);
  }

  void step() {
    rig->now += static_cast<TimeNs>(random() % static_cast<std::uint64_t>(kMs));
    if (random() % 2 == 0 && !rig->running.empty()) {
      auto at = rig->running.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % rig->running.size()));
      rig->finish(at->first, {static_cast<std::int32_t>(random() % 4), static_cast<std::int32_t>(random() % 2)});
    } else if (random() % 10 == 0) {
      rig->expire();
    } else if (random() % 20 == 0 && !open.empty()) {
      rig->pipeline->cancel(open.back(), rig->now);
      rig->walk();
    } else {
      open.assign(1, rig->arrive(random() % 4 == 0 ? kNever : 20 * kMs));
      ++arrived;
    }
    for (; seen < rig->steps.size(); ++seen) {
      const Step& s = rig->steps[seen];
      entered += s.kind == Step::Kind::kEnter && s.from < 0 ? 1 : 0;
      if (s.kind == Step::Kind::kExit) {
        exited[s.tag] += 1;
        if (!open.empty() && open.back() == s.root) open.clear();
      }
    }
  }

  Random random;
  std::unique_ptr<Rig> rig;
  std::vector<RootId> open;  // the last one, while it is
  std::map<std::uint64_t, int> exited;
  std::size_t seen = 0;
  std::uint64_t arrived = 0;
  std::uint64_t entered = 0;
};

}  // namespace arlo::flow::pipeline
