#include "gateway/desk/flow_books.h"

#include <algorithm>
#include <string>

#include "gateway/desk/flow_call.h"
#include "gateway/fleet/cascade.h"

namespace arlo::gateway {

void StageCounts::visited(double sureness, bool finite) {
  ++visits;
  not_finite += finite ? 0 : 1;
  const auto bin = static_cast<std::size_t>(sureness * kBins);
  ++confidence.at(std::min(bin, kBins - 1));
  confidence_sum += sureness;
}

void FlowBooks::begin(const ModelSpec& pipeline, bool others) {
  auto& counts = at(pipeline);
  const auto& stages = pipeline.flow->stages;
  if (others) counts.by_tenant.clear();
  counts.pipeline.resize(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    counts.pipeline[s].variants.resize(stages[s].variants.size());
    for (auto& each : counts.pipeline[s].variants) each.made.resize(stages[s].edges.size());
  }
}

void FlowBooks::audited(const ModelSpec& of, std::int32_t stage, std::int32_t variant, bool disagreed) {
  if (of.cascade != nullptr) {
    auto& counts = this->stage(of, stage);
    ++counts.shadow_rows;
    counts.shadow_disagreed += disagreed ? 1 : 0;
  } else if (variant >= 0) {
    auto& all = stages(of);
    const auto s = static_cast<std::size_t>(stage);
    const auto v = static_cast<std::size_t>(variant);
    if (s >= all.size() || v >= all[s].variants.size()) return;  // of a newer flow
    ++all[s].variants[v].shadow_rows;
    all[s].variants[v].shadow_agreed += disagreed ? 0 : 1;
  }
}

std::vector<FlowWorth>& FlowBooks::tenants(const ModelSpec& pipeline) {
  auto& worth = at(pipeline).by_tenant;
  worth.resize(std::max(worth.size(), pipeline.flow->tenants.size() + 1));  // rows of an older flow may have had more
  return worth;
}

void FlowBooks::ended(const Row& row, TimeNs now) {
  const Call& call = *row.call;
  const ModelSpec& of = *call.model;
  const bool in_time = call.bulk() || now - call.received_ns <= of.slo_ns;
  const double utility = call.request.flow_wishes().utility;
  const auto count = [&](FlowWorth& worth) {
    worth.offered += utility;
    if (call.fault.code == Code::kOk) {
      ++(in_time ? worth.in_time : worth.late);
      worth.right += in_time ? row.flow->accuracy : 0;
      worth.earned += in_time ? utility * row.flow->accuracy : 0;
    } else {
      ++(call.fault.overload || call.fault.code == Code::kDeadlineExceeded ? worth.evicted : worth.failed);
    }
  };
  count(at(of).by_class.at(call.bulk() ? 1 : 0));
  const auto& all = of.flow->tenants;
  if (row.flow->tenant <= all.size() && !all.empty()) count(tenants(of)[row.flow->tenant]);
  if (const auto& tasks = call.request.tasks(); !tasks.empty()) {
    auto& by_task = at(of).by_task;
    const auto task = tasks[row.index];
    if (by_task.size() <= task) by_task.resize(task + 1);
    count(by_task[task]);
  }
}

void FlowBooks::fill_cascade(v1::Stats* out, const ModelSpec& of, const Of& all) {
  const auto& cascade = *of.cascade;
  const auto& point = cascade.points[cascade.point];
  out->set_point(point.name);
  if (point.accuracy) out->set_expected_accuracy(*point.accuracy);
  for (std::size_t s = 0; s < cascade.stages.size(); ++s) {
    const auto& counts = all.cascade.at(s);
    auto* stage = out->add_stages();
    stage->set_model(cascade.stages[s].model->name);
    stage->set_visits(counts.visits);
    stage->set_not_finite(counts.not_finite);
    stage->mutable_exits()->Add(counts.exits.begin(), counts.exits.end());
    stage->mutable_escalations()->Add(counts.escalations.begin(),
                                      counts.escalations.begin() + static_cast<std::ptrdiff_t>(cascade.stages.size()));
    stage->mutable_confidence()->Add(counts.confidence.begin(), counts.confidence.end());
    stage->set_confidence_sum(counts.confidence_sum);
    stage->set_pruned_tokens(counts.pruned_tokens);
    stage->set_shadow_rows(counts.shadow_rows);
    stage->set_shadow_disagreed(counts.shadow_disagreed);
  }
}

void FlowBooks::fill_worth(v1::Stats* out, const ModelSpec& of, const Of& all, const FlowState* state) {
  const auto fill = [](const std::vector<FlowWorth>& from, std::size_t i, const std::string& name, v1::Worth* worth) {
    const auto one = i < from.size() ? from[i] : FlowWorth{};
    worth->set_of(name);
    worth->set_offered(one.offered);
    worth->set_earned(one.earned);
    worth->set_in_time(one.in_time);
    worth->set_right(one.right);
    worth->set_late(one.late);
    worth->set_evicted(one.evicted);
    worth->set_failed(one.failed);
    worth->set_busy_s(one.busy_s);
  };
  const std::vector<FlowWorth> classes(all.by_class.begin(), all.by_class.end());
  fill(classes, 0, "interactive", out->add_worth());
  fill(classes, 1, "bulk", out->add_worth());
  for (std::size_t t = 0; t < of.tasks.size(); ++t) fill(all.by_task, t, of.tasks[t].name, out->add_by_task());
  const auto& tenants = of.flow->tenants;
  for (std::size_t t = 0; t <= tenants.size() && !tenants.empty(); ++t) {
    auto* worth = out->add_by_tenant();
    fill(all.by_tenant, t, t < tenants.size() ? tenants[t].name : "", worth);
    const bool same = state != nullptr && state->model->flow->tenants.size() == tenants.size();
    worth->set_price(same ? state->tenants.price(t) : 1);
  }
}

void FlowBooks::fill(v1::Stats* out, const ModelSpec& of, const FlowState* state,
                     const dispatch::Scheduler& scheduler) const {
  const auto& all = of_.at(of.variant);
  if (of.cascade != nullptr) fill_cascade(out, of, all);
  if (of.flow == nullptr) return;
  fill_worth(out, of, all, state);
  const auto& counts = all.pipeline;
  std::int32_t variant = 0;
  for (std::size_t s = 0; s < of.flow->stages.size(); ++s) {
    const auto& stage = of.flow->stages[s];
    auto* to = out->add_pipeline();
    to->set_stage(stage.name);
    if (s < counts.size()) {
      to->set_visits(counts[s].visits);
      to->set_answered(counts[s].answered);
      to->set_ends(counts[s].ends);
      to->set_rerouted(counts[s].rerouted);
      to->mutable_dropped()->Add(counts[s].dropped.begin(), counts[s].dropped.end());
      to->set_arrived(counts[s].arrived);
      to->mutable_children()->Add(counts[s].children.begin(), counts[s].children.end());
      to->set_children_sum(counts[s].children_sum);
      for (const auto& each : counts[s].variants) {
        auto* one = to->add_variants();
        const auto v = static_cast<std::size_t>(to->variants_size()) - 1;
        if (v < stage.variants.size()) one->set_name(stage.variants[v].model->name);
        one->set_answered(each.answered);
        one->set_ended(each.ended);
        one->set_shadow_rows(each.shadow_rows);
        one->set_shadow_agreed(each.shadow_agreed);
        for (std::size_t e = 0; e < std::min(each.made.size(), stage.edges.size()); ++e) {
          if (stage.edges[e].core >= 0) one->add_made(each.made[e]);
        }
      }
    }
    for (std::size_t v = 0; v < stage.variants.size(); ++v, ++variant) {
      if (state == nullptr || variant >= state->core.tree().variants()) continue;
      const bool late = stage.counts.has_value();
      to->add_price(late ? scheduler.price(stage.counts->variants.front()) : state->core.price(variant));
    }
  }
}

}  // namespace arlo::gateway
