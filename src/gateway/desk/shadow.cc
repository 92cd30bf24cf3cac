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
namespace {

constexpr std::int32_t kOtherwise = 1 << 30;  // a label that no answer has: there are more or fewer of them
constexpr double kSurelyRight = 1e-4;         // no accuracy is known better

std::size_t content_of(const ModelSpec& of) {
  if (of.cascade != nullptr) return of.cascade->content;
  return of.flow != nullptr ? of.flow->content : 0;
}

}  // namespace

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

Shadow::Shadow(ShadowListener& listener, const Row& row, const Audited& audited)
    : listener_(listener), of_(row.call->model), stage_(0), said_(audited.label), audited_(audited) {
  lane = row.call->lane;
  router = row.call->router;
  model = of_;
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
  WorkerRequest::Row one{.request = &row.call->request, .row = row.index, .outputs = kAllOutputs};
  auto tokens = row.length;
  if (audited() == nullptr) {
    const auto& cascade = row.cascade();
    one.request = &row.call->request.in(cascade.stages.back().wording);
    one.outputs = cascade.asks(cascade.stages.size() - 1, cascade.made);
    tokens = last_length(row);
  }
  const WorkerRequest whole({&one, 1}, runtime, tokens);
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
  if (audited() != nullptr) {
    if (fault.code != Code::kOk || rows.size() != 1 || rows.front().flow == nullptr) return -1;
    if (rows.front().flow->dropped > 0) return -1;
    const auto labels = labels_of(*rows.front().flow);
    if (labels.empty()) return -1;
    return labels.size() == audited_.of ? labels[audited_.at] : kOtherwise;
  }
  if (variant_ >= 0) return label_of(logits());
  const auto& cascade = *of_->cascade;
  return label_of(cascade, cascade.stages.size() - 1, logits());
}

std::vector<std::int32_t> labels_of(const FlowRow& row) {
  std::vector<const FlowAnswer*> answers;
  for (const auto& answer : row.answers) {
    if (answer.last) answers.push_back(&answer);
  }
  std::sort(answers.begin(), answers.end(), [](const auto* a, const auto* b) { return a->way < b->way; });
  std::vector<std::int32_t> labels;
  for (const auto* answer : answers) {
    const auto& stage = row.state->model->flow->stages[static_cast<std::size_t>(answer->stage)];
    const int logits = stage.variants[static_cast<std::size_t>(answer->variant)].logits;
    const auto label = logits < 0 ? -1 : label_of(answer->parsed.raw(logits));
    if (label < 0) return {};
    labels.push_back(label);
  }
  return labels;
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
  const auto& order = cascade.spec.stages[stage].judge.label_order;
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
  if (watch.content != content_of(shadow.of())) return {};  // the rules have changed meanwhile
  const auto answer = shadow.answer();
  if (answer < 0) {
    ++watch.failed;
    return {};
  }
  const bool disagreed = answer != shadow.said();
  if (const Audited* audited = shadow.audited(); audited != nullptr) {
    const double may = std::clamp(2 - audited->accuracy - shadow.rows.front().flow->accuracy, 0.0, 1.0);
    watch.may_differ += may;
    watch.accuracy += audited->accuracy;
    watch.test.add(disagreed, std::max(may, kSurelyRight));
  } else {
    watch.test.add(disagreed);
  }
  return {.good = true, .disagreed = disagreed};
}

Shadows::Watch& Shadows::at(const ModelSpec& of) {
  auto& watch = watches_.at(of.variant);
  if (const auto content = content_of(of); watch.content != content) {
    watch.content = content;
    watch.test = flow::DisagreementTest(of.cascade == nullptr ? 0 : of.cascade->drift_epsilon);
    watch.may_differ = watch.accuracy = 0;
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

void Shadows::fill(v1::PipelineAudit* out, const ModelSpec& pipeline) const {
  const auto& watch = watches_.at(pipeline.variant);
  out->set_skipped(watch.skipped);
  out->set_failed(watch.failed);
  if (watch.content != pipeline.flow->content) return;
  out->set_rows(watch.test.rows());
  out->set_agreed(watch.test.rows() - watch.test.disagreed());
  out->set_may_differ(watch.may_differ);
  out->set_accuracy(watch.accuracy);
  out->set_alarm(watch.test.alarm());
}

}  // namespace arlo::gateway
