#include "gateway/desk/audit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gateway/desk/flow_call.h"
#include "gateway/desk/journey.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {
namespace {

constexpr std::int32_t kOtherwise = 1 << 30;  // a label that no answer has: the numbers of answers differ
constexpr double kSurelyRight = 1e-4;         // no accuracy is known more precisely

std::size_t content_of(const ModelSpec& of) {
  if (of.cascade != nullptr) return of.cascade->content;
  return of.flow != nullptr ? of.flow->content : 0;
}

std::size_t numbers_of(const SampledRow& row) {
  std::size_t sum = 0;
  for (const auto& [stage, logits] : row.said) sum += logits.size();
  return sum;
}

}  // namespace

Audit::Audit(AuditListener& listener, const Call& like, About about) : listener_(listener), about_(std::move(about)) {
  lane = like.lane;
  router = like.router;
  model = about_.asked;
  kind = Kind::kAudit;
}

MaybeFault Audit::write(const Row* row) {
  if (row != nullptr) {
    RuntimeInfo runtime;
    runtime.dynamic = true;
    WorkerRequest::Row one{.request = &row->call->request, .row = row->index, .outputs = kAllOutputs};
    auto tokens = row->length;
    if (about_.of->cascade != nullptr) {
      const auto& cascade = row->cascade();
      one.request = &row->call->request.in(cascade.stages.back().wording);
      one.outputs = cascade.asks(cascade.stages.size() - 1, cascade.made);
      tokens = last_length(*row);
    }
    const WorkerRequest whole({&one, 1}, runtime, tokens);
    body.resize(whole.size());
    whole.write(body.data());
  }
  if (auto bad = request.parse(body)) return bad;
  return request.bind(*model, {});
}

std::string_view Audit::logits() const {
  return fault.code == Code::kOk && rows.size() == 1 ? rows.front().parsed.raw(about_.logits) : std::string_view{};
}

std::int32_t Audit::answer() const {
  if (about_.logits >= 0) {
    const auto* cascade = about_.of->cascade.get();
    return cascade == nullptr ? label_of(logits())
                              : label_of(logits(), cascade->spec.labels, cascade->spec.stages.back().judge.label_order);
  }
  if (fault.code != Code::kOk || rows.size() != 1 || rows.front().flow == nullptr) return -1;
  if (rows.front().flow->dropped > 0) return -1;
  const auto labels = labels_of(*rows.front().flow);
  if (labels.empty()) return -1;
  return labels.size() == about_.answers ? labels[about_.at] : kOtherwise;
}

// ---- choosing the rows to audit, and evaluating the answers ----

bool Audits::drawn(const Cascade& cascade, const flow::RowFacts& facts) {
  constexpr std::uint64_t kOwn = 0x5368'6164'6f77;  // a different random stream from the soft rule's
  return cascade.shadow_share > 0 && cascade.spec.labels > 0 &&
         flow::hash01(cascade.seed ^ kOwn, facts.row, 0) < cascade.shadow_share;
}

void Audits::hear(Row& row, const flow::Signals& signals, bool early, std::int32_t price, Effects& effects) {
  auto& journey = *row.journey;
  auto& sample = journey.sample;
  const bool last = journey.stage + 1 == static_cast<std::int32_t>(row.cascade().stages.size());
  const bool room = last || room_for(row);
  // A price makes rows end early that would otherwise go on, so those that go on are not a fair sample.
  if (!room || !flow::finite(signals) || price > 0) sample = nullptr;
  if (sample != nullptr) {
    sample->said.emplace_back(journey.stage, std::vector<float>(signals.logits.begin(), signals.logits.end()));
    sample->pruned = journey.pruned;
  }
  if (last && sample != nullptr) into_sample(*row.call->model, std::move(sample));
  if (!early) return;
  if (room) {
    ask_last(row, effects);
  } else {
    ++at(*row.call->model).skipped;
  }
}

bool Audits::room_for(const Row& row) const {
  const auto& cascade = row.cascade();
  const auto last = cascade.stages.back().model->variant;
  return !full() && scheduler_.queued_of(last) == 0 && fleet_.busy(last) <= cascade.shadow_max_busy &&
         scheduler_.fits_any(last_length(row), last);
}

void Audits::into_sample(const ModelSpec& cascade, std::shared_ptr<SampledRow> row) {
  if (row->said.size() < 2) return;
  row->at_ms = unix_ms();
  samples_.at(cascade.variant).add(*cascade.cascade, std::move(row));
}

void Audits::ask_last(const Row& row, Effects& effects) {
  const auto& cascade = row.cascade();
  const auto& journey = *row.journey;
  const auto& asked = cascade.stages.back().model;
  Audit::About about{.of = row.call->model, .asked = asked, .stage = journey.stage, .sample = journey.sample};
  about.logits = asked->find_output(about.of->outputs[static_cast<std::size_t>(cascade.outputs.logits)].name);
  if (journey.mix.several()) {
    std::vector<double> q;
    journey.mix.probabilities(q);
    about.label = static_cast<std::int32_t>(std::max_element(q.begin(), q.end()) - q.begin());
  } else {
    about.label = label_of(journey.parsed.raw(cascade.outputs.logits), cascade.spec.labels,
                           cascade.spec.stages[static_cast<std::size_t>(journey.stage)].judge.label_order);
  }
  if (about.label >= 0) begin(*row.call, std::move(about), &row, {}, effects);
}

void Audits::hear(const VisitCall& visit, Effects& effects) {
  const auto& stage = visit.at();
  if (!stage.counts || stage.shadow <= 0 || visit.of().logits < 0 || visit.model->of_tensors()) return;
  const auto all = std::max_element(stage.variants.begin(), stage.variants.end(),
                                    [](const auto& one, const auto& other) { return one.tokens < other.tokens; });
  if (visit.tokens >= all->tokens) return;
  constexpr std::uint64_t kOwn = 0x546f'6b65'6e73;
  if (flow::hash01(kOwn, ++fewer_tokens_, 0) >= stage.shadow) return;
  const auto label = label_of(visit.rows.front().parsed.raw(visit.of().logits));
  if (label < 0 || full() || !scheduler_.fits_any(visit.rows.front().length, all->model->variant)) return;
  begin(visit,
        {.of = visit.state->model,
         .asked = all->model,
         .logits = all->logits,
         .stage = visit.stage,
         .variant = visit.variant,
         .label = label},
        nullptr, visit.body, effects);
}

void Audits::hear(const Row& row, Effects& effects) {
  const auto& flow = *row.call->model->flow;
  const auto& state = *row.flow->state;
  if (flow.audit <= 0 || row.call->kind == Call::Kind::kAudit || row.flow->best || row.flow->dropped > 0) return;
  if (row.call->model->of_tensors() || flow.content != state.model->flow->content) return;
  constexpr std::uint64_t kOwn = 0x4175'6469'7473;
  if (flow::hash01(kOwn, ++answered_, 0) >= flow.audit) return;
  const auto labels = labels_of(*row.flow);
  if (labels.empty()) return;
  bool room = !full();
  for (std::size_t s = 0; room && s < state.best.variants.size(); ++s) {
    const auto& stage = state.core.spec().stages[s];
    const auto enters = stage.line >= 0 ? stage.line : state.best.variants[s];
    const auto id = stage.variants[static_cast<std::size_t>(enters)].id;
    room = scheduler_.queued_of(id) == 0 && scheduler_.fits_any(s == 0 ? row.length : 1, id);
  }
  if (!room) {
    ++at(*row.call->model).skipped;
    return;
  }
  const auto which = static_cast<std::size_t>(flow::hash01(kOwn, answered_, 1) * static_cast<double>(labels.size()));
  begin(*row.call,
        {.of = row.call->model,
         .asked = row.call->model,
         .label = labels[which],
         .at = which,
         .answers = labels.size(),
         .accuracy = std::min(row.flow->accuracy, 1.0)},
        &row, {}, effects);
}

void Audits::begin(const Call& like, Audit::About about, const Row* row, std::string body, Effects& effects) {
  if (about.variant < 0) static_cast<void>(at(*about.of));
  auto* audit = new Audit(listener_, like, std::move(about));
  audit->body = std::move(body);
  open_.insert(audit);
  effects.audits.emplace_back(audit, row);
}

Audits::Result Audits::ended(Audit& audit) {
  open_.erase(&audit);
  const auto& about = audit.about();
  const auto answer = audit.answer();
  if (auto sample = audit.take_sample(); sample != nullptr && answer >= 0) {
    sample->said.emplace_back(static_cast<std::int32_t>(about.of->cascade->stages.size()) - 1, floats(audit.logits()));
    sample->pruned = 0;
    into_sample(*about.of, std::move(sample));
  }
  const bool disagreed = answer != about.label;
  if (about.variant >= 0) return {.good = answer >= 0, .disagreed = disagreed};
  auto& watch = watches_.at(about.of->variant);
  if (watch.content != content_of(*about.of)) return {};  // the rules have changed meanwhile
  if (answer < 0) {
    ++watch.failed;
    return {};
  }
  double may = watch.test.epsilon();
  if (about.of->cascade == nullptr) {
    may = std::clamp(2 - about.accuracy - audit.rows.front().flow->accuracy, 0.0, 1.0);
    watch.accuracy += about.accuracy;
    watch.test.add(disagreed, std::max(may, kSurelyRight));
  } else {
    watch.test.add(disagreed);
  }
  watch.may_differ += may;
  return {.good = true, .disagreed = disagreed};
}

Audits::Watch& Audits::at(const ModelSpec& of) {
  auto& watch = watches_.at(of.variant);
  if (const auto content = content_of(of); watch.content != content) {
    watch.content = content;
    watch.test = flow::DisagreementTest(of.cascade == nullptr ? 0 : of.cascade->drift_epsilon);
    watch.may_differ = watch.accuracy = 0;
  }
  return watch;
}

void Audits::fill(v1::Stats* out, const ModelSpec* model) const {
  if (model == nullptr) return;
  if (model->cascade != nullptr && model->cascade->shadow_share > 0) fill(out->mutable_shadows(), *model);
  if (model->flow != nullptr && model->flow->audit > 0) fill(out->mutable_audit(), *model);
}

void Audits::fill(v1::Audit* out, const ModelSpec& of) const {
  const auto& watch = watches_.at(of.variant);
  out->set_skipped(watch.skipped);
  out->set_failed(watch.failed);
  if (watch.content != content_of(of)) return;
  out->set_rows(watch.test.rows());
  out->set_disagreed(watch.test.disagreed());
  out->set_may_differ(watch.may_differ);
  out->set_accuracy(watch.accuracy);
  out->set_alarm(watch.test.alarm());
}

// ---- the sample ----

void Sample::add(const Cascade& cascade, std::shared_ptr<const SampledRow> row) {
  std::vector<std::string> of;
  of.reserve(cascade.stages.size() + cascade.labels.size());
  for (const auto& stage : cascade.stages) of.push_back(stage.model->name);
  of.insert(of.end(), cascade.labels.begin(), cascade.labels.end());
  if (of != of_) {
    rows_.clear();
    numbers_ = 0;
    of_ = std::move(of);
  }
  numbers_ += numbers_of(*row);
  rows_.push_back(std::move(row));
  while (rows_.size() > kMostRows || numbers_ > kMostNumbers) {
    numbers_ -= numbers_of(*rows_.front());
    rows_.pop_front();
  }
}

void fill_sample(const Sample::Rows& rows, v1::GetSampleReply* out) {
  for (const auto& row : rows) {
    auto* one = out->add_rows();
    one->set_length(static_cast<std::uint32_t>(row->length));
    one->set_pruned(static_cast<std::uint32_t>(row->pruned));
    one->set_share(row->share);
    one->set_at_ms(row->at_ms);
    for (const auto& [stage, logits] : row->said) {
      auto* said = one->add_said();
      said->set_stage(static_cast<std::uint32_t>(stage));
      said->mutable_logits()->Add(logits.begin(), logits.end());
    }
  }
}

}  // namespace arlo::gateway
