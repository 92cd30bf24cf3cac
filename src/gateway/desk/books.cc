#include "gateway/desk/books.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "gateway/desk/flow_call.h"
#include "gateway/fleet/cascade.h"

namespace arlo::gateway {
namespace {

Outcome outcome_of(Code code) {
  switch (code) {
    case Code::kDeadlineExceeded:
      return Outcome::kExpired;
    case Code::kCancelled:
      return Outcome::kCancelled;
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kResourceExhausted:
    case Code::kUnimplemented:
    case Code::kUnauthenticated:
      return Outcome::kRejected;
    default:
      return Outcome::kFailed;
  }
}

std::uint64_t to_us(TimeNs ns) { return ns <= 0 ? 0 : static_cast<std::uint64_t>(ns / 1000); }

void fill_window(const LatencyWindow& window, TimeNs now, v1::Percentiles* out) {
  const auto summary = window.summary(now);
  out->set_count(summary.count);
  out->set_window_s(LatencyWindow::kSlots);
  out->set_mean_us(summary.mean_us);
  out->set_p50_us(summary.p50_us);
  out->set_p90_us(summary.p90_us);
  out->set_p98_us(summary.p98_us);
  out->set_p99_us(summary.p99_us);
  out->set_max_us(summary.max_us);
}

}  // namespace

void Books::relevel(const dispatch::Scheduler& scheduler, dispatch::VariantId variant) {
  std::vector<v1::LevelStats> levels;
  for (std::int32_t level = 0; level < scheduler.levels(); ++level) {
    if (scheduler.level_variant(level) != variant) continue;
    if (levels.empty()) first_level_ = level;
    auto& one = levels.emplace_back();
    one.set_max_length(static_cast<std::uint32_t>(scheduler.level_max_length(level)));
    for (const auto& old : levels_) {
      if (old.max_length() == one.max_length()) one = old;
    }
  }
  levels_ = std::move(levels);
  if (!levels_.empty()) {
    arrivals_by_length_.resize(std::max(arrivals_by_length_.size(), std::size_t{levels_.back().max_length()} + 1));
  }
}

void Books::arrived(std::int32_t length, std::int32_t ideal_level) {
  if (ideal_level >= 0) at(ideal_level).set_ideal(at(ideal_level).ideal() + 1);
  const auto tokens = static_cast<std::size_t>(length);
  if (ideal_level < 0 && tokens >= arrivals_by_length_.size()) arrivals_by_length_.resize(tokens + 1);
  if (tokens < arrivals_by_length_.size()) ++arrivals_by_length_[tokens];
}

void Books::started(const Row& row, std::int64_t more) {
  const auto by = static_cast<std::uint64_t>(more);  // wraps, as counters do
  auto& level = at(row.level);
  level.set_dispatched(level.dispatched() + by);
  if (row.demoted) level.set_demoted(level.demoted() + by);
  tokens_ += by * static_cast<std::uint64_t>(row.length);
  computed_tokens_ += by * static_cast<std::uint64_t>(row.padded);
}

void Books::count(const Fault& fault, std::uint64_t rows) {
  outcomes_[static_cast<std::size_t>(outcome_of(fault.code))] += rows;
  if (fault.overload) overloaded_ += rows;
}

void Books::ended(const Call& call, TimeNs now) {
  if (call.fault.code != Code::kOk) {
    count(call.fault, call.rows.size());
    return;
  }
  const TimeNs total = now - call.received_ns;
  const bool bulk = call.bulk();  // bulk is never due, and its waits would hide those of other rows
  const auto outcome = bulk || total <= call.model->slo_ns ? Outcome::kOnTime : Outcome::kLate;
  outcomes_[static_cast<std::size_t>(outcome)] += call.rows.size();
  if (bulk) {
    bulk_ += call.rows.size();
    return;
  }
  const auto total_us = to_us(total);
  for (const auto& row : call.rows) {
    const auto queue_us = to_us(row.queued_ns());
    const auto execute_us = to_us(row.executed_ns());
    window_total_.record(total_us, now);
    window_queue_.record(queue_us, now);
    window_execute_.record(execute_us, now);
    histograms_.total.record(total_us);
    histograms_.queue.record(queue_us);
    histograms_.execute.record(execute_us);
    if (call.trace == nullptr || call.trace->own == 0) continue;
    const auto& trace_id = call.trace->parent.trace_id;
    const auto at = unix_ms();
    histograms_.total.exemplify(total_us, trace_id, at);
    histograms_.queue.exemplify(queue_us, trace_id, at);
    histograms_.execute.exemplify(execute_us, trace_id, at);
  }
}

void Books::fill(v1::Stats* out, TimeNs now) const {
  out->mutable_arrivals_by_length()->Add(arrivals_by_length_.begin(), arrivals_by_length_.end());
  out->mutable_levels()->Add(levels_.begin(), levels_.end());
  const auto of = [this](Outcome outcome) { return outcomes_[static_cast<std::size_t>(outcome)]; };
  auto* outcomes = out->mutable_outcomes();
  outcomes->set_on_time(of(Outcome::kOnTime));
  outcomes->set_late(of(Outcome::kLate));
  outcomes->set_rejected(of(Outcome::kRejected));
  outcomes->set_expired(of(Outcome::kExpired));
  outcomes->set_cancelled(of(Outcome::kCancelled));
  outcomes->set_failed(of(Outcome::kFailed));
  outcomes->set_overloaded(overloaded_);
  fill_window(window_total_, now, out->mutable_total());
  fill_window(window_queue_, now, out->mutable_queue());
  fill_window(window_execute_, now, out->mutable_execute());
  out->set_tokens(tokens_);
  out->set_computed_tokens(computed_tokens_);
  out->set_retries(retries_);
  out->set_batches(batches_);
  out->set_bulk(bulk_);
}

// ---- cascades and pipelines ----

namespace {

v1::StageStats no_rows() {
  constexpr int kBins = 20;
  v1::StageStats stage;
  stage.mutable_exits()->Resize(flow::kReasons, 0);
  stage.mutable_escalations()->Resize(flow::kMaxStages, 0);
  stage.mutable_confidence()->Resize(kBins, 0);
  return stage;
}

// The counters of one of several, who may be new.
v1::Worth& one_of(std::vector<v1::Worth>& all, std::size_t which) {
  all.resize(std::max(all.size(), which + 1));
  return all[which];
}

}  // namespace

void FlowBooks::begin(const ModelSpec& pipeline, bool others) {
  constexpr int kChildren = 13;  // answered rows by their number of children: 0, 1, 2, 4, .. 1024 at most, more
  auto& counts = at(pipeline);
  const auto& stages = pipeline.flow->stages;
  if (others) counts.by_tenant.clear();
  counts.pipeline.resize(std::max(counts.pipeline.size(), stages.size()));  // rows of an older flow may still be there
  for (std::size_t s = 0; s < stages.size(); ++s) {
    auto& stage = counts.pipeline[s];
    stage.mutable_dropped()->Resize(flow::pipeline::kDropReasons, 0);
    stage.mutable_children()->Resize(kChildren, 0);
    while (stage.variants_size() < std::ssize(stages[s].variants)) stage.add_variants();
    const auto edges = static_cast<int>(stages[s].edges.size());
    for (auto& each : *stage.mutable_variants()) each.mutable_made()->Resize(std::max(each.made_size(), edges), 0);
  }
}

v1::StageStats& FlowBooks::stage(const ModelSpec& cascade, std::int32_t stage) {
  auto& all = at(cascade).cascade;
  if (all.empty()) all.assign(flow::kMaxStages, no_rows());
  return all[static_cast<std::size_t>(stage)];
}

void FlowBooks::visited(v1::StageStats& stage, double confidence, bool finite) {
  stage.set_visits(stage.visits() + 1);
  stage.set_not_finite(stage.not_finite() + (finite ? 0 : 1));
  const int bins = stage.confidence_size();
  bump(stage.mutable_confidence(), std::min(static_cast<int>(confidence * bins), bins - 1));
  stage.set_confidence_sum(stage.confidence_sum() + confidence);
}

void FlowBooks::joined(const ModelSpec& pipeline, std::int32_t stage, std::int32_t edge) {
  arrived(pipeline, stage, 1);
  const auto& stages = pipeline.flow->stages;
  const auto from = pipeline.flow->core.edges[static_cast<std::size_t>(edge)].from;
  const auto& edges = stages[static_cast<std::size_t>(from)].edges;
  const auto which = std::find_if(edges.begin(), edges.end(), [&](const auto& e) { return e.core == edge; });
  bump(at(pipeline, from).mutable_variants(0)->mutable_made(), which - edges.begin());  // of no single variant
}

void FlowBooks::answered(const ModelSpec& pipeline, std::int32_t stage, std::int32_t variant) {
  auto& counts = at(pipeline, stage);
  auto& one = *counts.mutable_variants(variant);
  counts.set_answered(counts.answered() + 1);
  one.set_answered(one.answered() + 1);
}

void FlowBooks::became(const ModelSpec& pipeline, std::int32_t stage, std::int32_t variant, std::uint64_t rows) {
  auto& counts = at(pipeline, stage);
  auto& one = *counts.mutable_variants(variant);
  const int bin = rows == 0 ? 0 : static_cast<int>(std::bit_width(rows - 1)) + 1;
  bump(counts.mutable_children(), std::min(bin, counts.children_size() - 1));
  counts.set_children_sum(counts.children_sum() + rows);
  counts.set_ends(counts.ends() + (rows == 0 ? 1 : 0));
  one.set_ended(one.ended() + (rows == 0 ? 1 : 0));
}

void FlowBooks::audited(const ModelSpec& of, std::int32_t stage, std::int32_t variant, bool disagreed) {
  if (of.cascade != nullptr) {
    auto& counts = this->stage(of, stage);
    counts.set_shadow_rows(counts.shadow_rows() + 1);
    counts.set_shadow_disagreed(counts.shadow_disagreed() + (disagreed ? 1 : 0));
  } else if (variant >= 0) {
    auto& all = at(of).pipeline;
    if (std::cmp_greater_equal(stage, all.size())) return;
    auto& here = all[static_cast<std::size_t>(stage)];
    if (variant >= here.variants_size()) return;  // of a newer flow
    auto& counts = *here.mutable_variants(variant);
    counts.set_shadow_rows(counts.shadow_rows() + 1);
    counts.set_shadow_agreed(counts.shadow_agreed() + (disagreed ? 0 : 1));
  }
}

void FlowBooks::took(const ModelSpec& pipeline, std::size_t tenant, double seconds) {
  auto& worth = one_of(at(pipeline).by_tenant, tenant);
  worth.set_busy_s(worth.busy_s() + seconds);
}

void FlowBooks::ended(const Row& row, TimeNs now) {
  const Call& call = *row.call;
  const ModelSpec& of = *call.model;
  const bool in_time = call.bulk() || now - call.received_ns <= of.slo_ns;
  const double utility = call.request.flow_wishes().utility;
  const auto count = [&](v1::Worth& worth) {
    worth.set_offered(worth.offered() + utility);
    if (call.fault.code != Code::kOk) {
      const bool evicted = call.fault.overload || call.fault.code == Code::kDeadlineExceeded;
      worth.set_evicted(worth.evicted() + (evicted ? 1 : 0));
      worth.set_failed(worth.failed() + (evicted ? 0 : 1));
    } else if (in_time) {
      worth.set_in_time(worth.in_time() + 1);
      worth.set_right(worth.right() + row.flow->accuracy);
      worth.set_earned(worth.earned() + utility * row.flow->accuracy);
    } else {
      worth.set_late(worth.late() + 1);
    }
  };
  count(at(of).by_class.at(call.bulk() ? 1 : 0));
  const auto& all = of.flow->tenants;
  if (row.flow->tenant <= all.size() && !all.empty()) count(one_of(at(of).by_tenant, row.flow->tenant));
  if (const auto& tasks = call.request.tasks(); !tasks.empty()) count(one_of(at(of).by_task, tasks[row.index]));
}

void FlowBooks::fill_cascade(v1::Stats* out, const ModelSpec& of, const Of& all) {
  const auto& cascade = *of.cascade;
  const auto& point = cascade.points[cascade.point];
  out->set_point(point.name);
  if (point.accuracy) out->set_expected_accuracy(*point.accuracy);
  for (std::size_t s = 0; s < cascade.stages.size(); ++s) {
    auto* stage = out->add_stages();
    *stage = s < all.cascade.size() ? all.cascade[s] : no_rows();
    stage->set_model(cascade.stages[s].model->name);
    stage->mutable_escalations()->Truncate(static_cast<int>(cascade.stages.size()));
  }
}

void FlowBooks::fill_worth(v1::Stats* out, const ModelSpec& of, const Of& all, const FlowState* state) {
  const auto fill = [](const auto& from, std::size_t i, const std::string& name, v1::Worth* worth) {
    if (i < from.size()) *worth = from[i];
    worth->set_of(name);
  };
  fill(all.by_class, 0, "interactive", out->add_worth());
  fill(all.by_class, 1, "bulk", out->add_worth());
  for (std::size_t t = 0; t < of.tasks.size(); ++t) fill(all.by_task, t, of.tasks[t].name, out->add_by_task());
  const auto& tenants = of.flow->tenants;
  for (std::size_t t = 0; t <= tenants.size() && !tenants.empty(); ++t) {
    auto* worth = out->add_by_tenant();
    fill(all.by_tenant, t, t < tenants.size() ? tenants[t].name : "", worth);
    const bool same = state != nullptr && state->model->flow->tenants.size() == tenants.size();
    worth->set_price(same ? state->tenants.price(t) : 1);
  }
}

void FlowBooks::fill_stages(v1::Stats* out, const ModelSpec& of, const Of& all) {
  for (std::size_t s = 0; s < of.flow->stages.size(); ++s) {
    const auto& stage = of.flow->stages[s];
    auto* to = out->add_pipeline();
    if (s < all.pipeline.size()) *to = all.pipeline[s];
    to->set_stage(stage.name);
    while (to->variants_size() > std::ssize(stage.variants)) to->mutable_variants()->RemoveLast();
    for (int v = 0; v < to->variants_size(); ++v) {
      auto& one = *to->mutable_variants(v);
      one.set_name(stage.variants[static_cast<std::size_t>(v)].model->name);
      int edges = 0;  // without exits
      for (int e = 0; e < std::min<int>(one.made_size(), static_cast<int>(stage.edges.size())); ++e) {
        if (stage.edges[static_cast<std::size_t>(e)].core >= 0) one.set_made(edges++, one.made(e));
      }
      one.mutable_made()->Truncate(edges);
    }
  }
}

void FlowBooks::fill(v1::Stats* out, const ModelSpec& of, const FlowState* state,
                     const dispatch::Scheduler& scheduler) const {
  const auto& all = of_.at(of.variant);
  if (of.cascade != nullptr) fill_cascade(out, of, all);
  if (of.flow == nullptr) return;
  fill_worth(out, of, all, state);
  fill_stages(out, of, all);
  if (state == nullptr) return;
  std::int32_t variant = 0;
  for (std::size_t s = 0; s < of.flow->stages.size(); ++s) {
    const auto& stage = of.flow->stages[s];
    for (std::size_t v = 0; v < stage.variants.size() && variant < state->core.tree().variants(); ++v, ++variant) {
      out->mutable_pipeline(static_cast<int>(s))
          ->add_price(stage.counts ? scheduler.price(stage.counts->variants.front()) : state->core.price(variant));
    }
  }
}

}  // namespace arlo::gateway
