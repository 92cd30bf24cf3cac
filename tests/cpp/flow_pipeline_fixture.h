// A pipeline on a scheduler, with what each says at hand, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
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
        runtimes.push_back(scheduler.add_runtime({.max_length = 512,
                                                  .max_batch = 1,
                                                  .capacity = 100,
                                                  .latency = {{512, 1, v.least}},
                                                  .variant = v.id}));
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
    ASSERT_NE(found, running.end()) << "nothing runs there";
    const Run run = found->second;
    running.erase(found);
    scheduler.finish(run.handle, dispatch::Verdict::kAnswered, now, actions);
    if (run.visit == kNone || visits[run.tag] == kNone) {
      walk();
      return;
    }
    std::vector<Children> children;
    const auto& out = pipeline->tree().stage(pipeline->stage(run.visit)).out;
    for (std::size_t i = 0; i < std::min(counts.size(), out.size()); ++i) children.push_back({out[i].edge, 10, counts[i]});
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

}  // namespace arlo::flow::pipeline
