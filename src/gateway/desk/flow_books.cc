// What is counted of pipelines: what rows were worth, by class, task and tenant, and the gateway's own rows that see
// whether answers are as good as they are expected to be.
#include <algorithm>
#include <utility>

#include "gateway/desk/desk.h"

namespace arlo::gateway {

// Whether all tokens say the same is asked of some of the rows that got fewer, while there is time.
void Desk::shadow(const VisitCall& visit, Effects& effects) {
  const auto& stage = visit.state->model->flow->stages[static_cast<std::size_t>(visit.stage)];
  if (!stage.counts || stage.shadow <= 0 || visit.of().logits < 0 || visit.model->of_tensors()) return;
  const auto all = std::max_element(stage.variants.begin(), stage.variants.end(),
                                    [](const auto& one, const auto& other) { return one.tokens < other.tokens; });
  if (visit.tokens >= all->tokens) return;
  constexpr std::uint64_t kOwn = 0x546f'6b65'6e73;
  if (flow::hash01(kOwn, ++fewer_tokens_, 0) >= stage.shadow) return;
  const auto to = all->model->variant;
  const auto said = label_of(visit.rows.front().parsed.raw(visit.of().logits));
  if (said < 0 || shadows_.full() || !scheduler_.fits_any(visit.rows.front().length, to)) return;
  auto* shadow = new Shadow(shadow_listener_, visit, static_cast<std::int32_t>(all - stage.variants.begin()), said);
  shadows_.begun(*shadow);
  effects.shadows.emplace_back(shadow, nullptr);
}

void Desk::audit(const Row& row, Effects& effects) {
  const auto& flow = *row.call->model->flow;
  const auto& state = *row.flow->state;
  if (flow.audit <= 0 || row.call->shadow || row.flow->best || row.flow->dropped > 0) return;
  if (row.call->model->of_tensors() || flow.content != state.model->flow->content) return;
  constexpr std::uint64_t kOwn = 0x4175'6469'7473;
  if (flow::hash01(kOwn, ++audited_, 0) >= flow.audit) return;
  const auto labels = labels_of(*row.flow);
  if (labels.empty()) return;
  bool room = !shadows_.full();
  for (std::size_t s = 0; room && s < state.best.variants.size(); ++s) {
    const auto& stage = state.core.spec().stages[s];
    const auto enters = stage.line >= 0 ? stage.line : state.best.variants[s];
    const auto id = stage.variants[static_cast<std::size_t>(enters)].id;
    room = scheduler_.queued_of(id) == 0 && scheduler_.fits_any(s == 0 ? row.length : 1, id);
  }
  if (!room) {
    shadows_.skipped(*row.call->model);
    return;
  }
  const auto which = static_cast<std::size_t>(flow::hash01(kOwn, audited_, 1) * static_cast<double>(labels.size()));
  auto* shadow = new Shadow(
      shadow_listener_, row,
      {.label = labels[which], .at = which, .of = labels.size(), .accuracy = std::min(row.flow->accuracy, 1.0)});
  shadows_.begun(*shadow);
  effects.shadows.emplace_back(shadow, &row);
}

// What a visit's row took of a worker is its tenant's.
void Desk::took_worker(const VisitCall& visit, const Row& row) {
  FlowState& state = *visit.root->state;
  const auto& flow = *state.model->flow;
  if (flow.tenants.empty() || visit.root->row->call->shadow) return;
  const auto tenant = visit.root->row->flow->tenant;
  const double seconds = static_cast<double>(row.executed_ns()) / 1e9 / std::max(row.batch_rows, 1);
  state.tenants.took(tenant, seconds, row.queued_ns(), state.model->slo_ns - state.least());
  worth_of_tenants(*state.model)[tenant].busy_s += seconds;
}

std::vector<FlowWorth>& Desk::worth_of_tenants(const ModelSpec& model) {
  auto& worth = tenant_worth_.at(model.variant);
  worth.resize(std::max(worth.size(), model.flow->tenants.size() + 1));  // rows of an older flow may have had more
  return worth;
}

// The row ends without what is still under way of it.
void Desk::leave_flow(Row& row, TimeNs now) {
  const Call& call = *row.call;
  const bool in_time = call.bulk() || now - call.received_ns <= call.model->slo_ns;
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
  const bool own = call.shadow;  // which is no client's
  if (!own) count(flow_worth_.at(call.model->variant).at(call.bulk() ? 1 : 0));
  const auto& tenants = call.model->flow->tenants;
  if (!own && row.flow->tenant <= tenants.size() && !tenants.empty()) {
    count(worth_of_tenants(*call.model)[row.flow->tenant]);
  }
  if (const auto& tasks = call.request.tasks(); !own && !tasks.empty()) {
    auto& by_task = task_worth_.at(call.model->variant);
    const auto task = tasks[row.index];
    if (by_task.size() <= task) by_task.resize(task + 1);
    count(by_task[task]);
  }
  for (FlowRoot* root : std::exchange(row.flow->roots, {})) {
    root->row = nullptr;
    root->state->core.cancel(root->id, now);
  }
}

void Desk::fill_flow(v1::Stats* out, const ModelSpec* model) const {
  if (model == nullptr || model->flow == nullptr) return;
  const auto& counts = flow_counts_.at(model->variant);
  const auto& state = flows_.at(model->variant);
  const auto& classes = flow_worth_.at(model->variant);
  const auto fill = [](const FlowWorth& from, const std::string& of, v1::Worth* worth) {
    worth->set_of(of);
    worth->set_offered(from.offered);
    worth->set_earned(from.earned);
    worth->set_in_time(from.in_time);
    worth->set_right(from.right);
    worth->set_late(from.late);
    worth->set_evicted(from.evicted);
    worth->set_failed(from.failed);
    worth->set_busy_s(from.busy_s);
  };
  for (std::size_t c = 0; c < classes.size(); ++c)
    fill(classes.at(c), c == 0 ? "interactive" : "bulk", out->add_worth());
  const auto& by_task = task_worth_.at(model->variant);
  for (std::size_t t = 0; t < model->tasks.size(); ++t) {
    fill(t < by_task.size() ? by_task[t] : FlowWorth{}, model->tasks[t].name, out->add_by_task());
  }
  const auto& tenants = model->flow->tenants;
  const auto& by_tenant = tenant_worth_.at(model->variant);
  for (std::size_t t = 0; t <= tenants.size() && !tenants.empty(); ++t) {
    auto* worth = out->add_by_tenant();
    fill(t < by_tenant.size() ? by_tenant[t] : FlowWorth{}, t < tenants.size() ? tenants[t].name : "", worth);
    const bool same = state != nullptr && state->model->flow->tenants.size() == tenants.size();
    worth->set_price(same ? state->tenants.price(t) : 1);
  }
  if (model->flow->audit > 0) shadows_.fill(out->mutable_audit(), *model);
  std::int32_t variant = 0;
  for (std::size_t s = 0; s < model->flow->stages.size(); ++s) {
    const auto& stage = model->flow->stages[s];
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
      to->add_price(late ? scheduler_.price(stage.counts->variants.front()) : state->core.price(variant));
    }
  }
}

}  // namespace arlo::gateway
