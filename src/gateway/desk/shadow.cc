#include "gateway/desk/shadow.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gateway/desk/flow_call.h"
#include "gateway/desk/journey.h"

namespace arlo::gateway {

Shadow::Shadow(ShadowListener& listener, const Row& row, std::int32_t stage, std::int32_t said,
               std::shared_ptr<SampledRow> sample)
    : listener_(listener), of_(row.call->model), stage_(stage), said_(said), sample_(std::move(sample)) {
  lane = row.call->lane;
  router = row.call->router;
  model = row.cascade().stages.back().model;
  shadow = true;
}

Shadow::Shadow(ShadowListener& listener, const VisitCall& from, std::int32_t all, std::int32_t said)
    : listener_(listener), of_(from.state->model), stage_(from.stage), variant_(from.variant), all_(all), said_(said) {
  lane = from.lane;
  router = from.router;
  model = of_->flow->stages[static_cast<std::size_t>(stage_)].variants[static_cast<std::size_t>(all)].model;
  body = from.body;
  shadow = true;
}

MaybeFault Shadow::write(const Row* of) {
  if (of == nullptr) {
    if (auto bad = request.parse(body)) return bad;
    return request.bind(*model, {});
  }
  const Row& row = *of;
  RuntimeInfo runtime;
  runtime.dynamic = true;
  const auto& cascade = row.cascade();
  const WorkerRequest::Row one{.request = &row.call->request.in(cascade.stages.back().wording),
                               .row = row.index,
                               .outputs = cascade.asks(cascade.stages.size() - 1, cascade.made)};
  const WorkerRequest whole({&one, 1}, runtime, last_length(row));
  body.resize(whole.size());
  whole.write(body.data());
  if (auto bad = request.parse(body)) return bad;
  return request.bind(*model, {});
}

std::string_view Shadow::logits() const {
  if (fault.code != Code::kOk || rows.size() != 1) return {};
  if (variant_ >= 0) {
    const auto& variants = of_->flow->stages[static_cast<std::size_t>(stage_)].variants;
    return rows.front().parsed.raw(variants[static_cast<std::size_t>(all_)].logits);
  }
  const auto& cascade = *of_->cascade;
  const auto& name = of_->outputs[static_cast<std::size_t>(cascade.outputs.logits)].name;
  return rows.front().parsed.raw(model->find_output(name));
}

std::int32_t Shadow::answer() const {
  if (variant_ >= 0) return label_of(logits());
  const auto& cascade = *of_->cascade;
  return label_of(cascade, cascade.stages.size() - 1, logits());
}

std::int32_t label_of(std::string_view logits) {
  std::vector<float> values(logits.size() / sizeof(float));
  if (values.empty()) return -1;
  std::memcpy(values.data(), logits.data(), values.size() * sizeof(float));
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return -1;
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::int32_t label_of(const Cascade& cascade, std::size_t stage, std::string_view logits) {
  std::vector<float> values(logits.size() / sizeof(float));
  if (values.empty() || values.size() != static_cast<std::size_t>(cascade.spec.labels)) return -1;
  std::memcpy(values.data(), logits.data(), values.size() * sizeof(float));
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return -1;
  const auto& order = cascade.spec.stages[stage].label_order;
  if (!order.empty()) {  // equal ones: the first in the cascade's order
    std::vector<float> ordered(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) ordered[order[i]] = values[i];
    values = std::move(ordered);
  }
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

bool Shadows::drawn(const Cascade& cascade, const flow::RowFacts& facts) {
  constexpr std::uint64_t kOwn = 0x5368'6164'6f77;  // other numbers than those of the soft rule
  return cascade.shadow_share > 0 && cascade.spec.labels > 0 &&
         flow::hash01(cascade.seed ^ kOwn, facts.row, 0) < cascade.shadow_share;
}

void Shadows::begun(Shadow& shadow) {
  if (shadow.variant() < 0) static_cast<void>(at(shadow.of()));
  open_.insert(&shadow);
}

Shadows::Result Shadows::ended(Shadow& shadow) {
  open_.erase(&shadow);
  if (shadow.variant() >= 0) return {.good = shadow.answer() >= 0, .disagreed = shadow.answer() != shadow.said()};
  auto& watch = watches_.at(shadow.of().variant);
  if (watch.content != shadow.of().cascade->content) return {};  // the rules have changed meanwhile
  const auto answer = shadow.answer();
  if (answer < 0) {
    ++watch.failed;
    return {};
  }
  const bool disagreed = answer != shadow.said();
  watch.test.add(disagreed);
  return {.good = true, .disagreed = disagreed};
}

Shadows::Watch& Shadows::at(const ModelSpec& cascade) {
  auto& watch = watches_.at(cascade.variant);
  const auto content = cascade.cascade->content;
  if (watch.content != content) {
    watch.content = content;
    const double epsilon = cascade.cascade->drift_epsilon;
    watch.test = epsilon > 0 ? flow::DisagreementTest(epsilon) : flow::DisagreementTest();
  }
  return watch;
}

void Shadows::fill(v1::Shadows* out, const ModelSpec& cascade) const {
  const auto& watch = watches_.at(cascade.variant);
  out->set_epsilon(cascade.cascade->drift_epsilon);
  out->set_skipped(watch.skipped);
  out->set_failed(watch.failed);
  if (watch.content != cascade.cascade->content) return;
  out->set_rows(watch.test.rows());
  out->set_disagreed(watch.test.disagreed());
  out->set_alarm(watch.test.alarm());
}

}  // namespace arlo::gateway
