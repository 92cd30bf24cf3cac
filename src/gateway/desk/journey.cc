#include "gateway/desk/journey.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "gateway/desk/audit.h"
#include "gateway/desk/flow_call.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {
namespace {

template <class Value>
void append(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

void Call::partial(std::unique_ptr<PartialAnswer> answer) {
  answer.reset();
  let_go();
}

Row::Row() = default;
Row::~Row() = default;
Row::Row(Row&&) noexcept = default;

const ModelSpec& Row::model() const {
  if (journey == nullptr) return *call->model;
  return *call->model->cascade->stages[static_cast<std::size_t>(journey->stage)].model;
}

const Cascade& Row::cascade() const { return *call->model->cascade; }

TimeNs Row::queued_ns() const {
  if (flow != nullptr) return ended_ns - call->received_ns - executed_ns();
  if (journey == nullptr) return started_ns - call->received_ns;
  TimeNs sum = 0;
  for (const auto& visit : journey->visits) sum += visit.queued_ns;
  return sum;
}

TimeNs Row::executed_ns() const {
  if (flow != nullptr) return flow->executed_ns;
  if (journey == nullptr) return ended_ns - started_ns;
  TimeNs sum = 0;
  for (const auto& visit : journey->visits) sum += visit.executed_ns;
  return sum;
}

std::int32_t length_at(const Row& row, std::int32_t stage) {
  const auto& at = row.cascade().stages[static_cast<std::size_t>(stage)];
  return row.call->request.in(at.wording).lengths()[row.index];
}

std::int32_t last_length(const Row& row) {
  return length_at(row, static_cast<std::int32_t>(row.cascade().stages.size()) - 1);
}

const InferRequest& worded(const Row& row) {
  const auto& request = row.call->request;
  return row.journey == nullptr ? request : request.in(row.journey->wording);
}

RowResponse answer_of(const Call& call, Journey& journey, bool final) {
  const auto& cascade = *call.model->cascade;
  const OutputSet wanted = call.request.outputs();
  RowResponse answer = journey.parsed.only(wanted & ~cascade.made);
  const auto& outputs = cascade.outputs;
  const auto asked = [&](int output) { return output >= 0 && (wanted >> output & 1) != 0; };
  std::vector<double> q;
  std::vector<float> logits;
  const auto& stage = cascade.spec.stages[static_cast<std::size_t>(journey.answered_by)].judge;
  const bool mixed = journey.mix.several();
  const bool ordered = !mixed && !stage.label_order.empty() && asked(outputs.logits);
  if (!mixed && (ordered || asked(outputs.probabilities))) floats(journey.parsed.raw(outputs.logits), logits);
  if (mixed) {
    journey.mix.probabilities(q);
  } else if (asked(outputs.probabilities)) {
    q.resize(static_cast<std::size_t>(cascade.spec.labels));
    if (logits.size() != q.size() || !flow::calibrate(stage, logits, journey.facts.length, q)) {
      std::fill(q.begin(), q.end(), std::nan(""));
    }
  }
  // All bytes are written before views are taken, because growth moves them.
  std::string& made = journey.made;
  append(made, static_cast<std::int32_t>(journey.answered_by));
  append(made, static_cast<float>(journey.confidence));
  append(made, final ? static_cast<std::int32_t>(journey.reason) : -1);
  for (const double p : q) append(made, static_cast<float>(p));
  if (mixed) {
    for (const double p : q) append(made, static_cast<float>(std::log(p)));
  } else if (ordered) {  // in the label order of the cascade, not of the stage
    std::vector<float> places(stage.label_order.size(), std::nanf(""));
    for (std::size_t i = 0; i < std::min(places.size(), logits.size()); ++i) places[stage.label_order[i]] = logits[i];
    for (const float z : places) append(made, z);
  }
  const std::string_view all = made;
  const auto labels = static_cast<std::int64_t>(q.size());
  const std::size_t bytes = q.size() * sizeof(float);
  if (asked(outputs.stage)) answer.set(outputs.stage, {}, all.substr(0, 4));
  if (asked(outputs.sureness)) answer.set(outputs.sureness, {}, all.substr(4, 4));
  if (asked(outputs.reason)) answer.set(outputs.reason, {}, all.substr(8, 4));
  if (asked(outputs.probabilities)) answer.set(outputs.probabilities, {labels}, all.substr(12, bytes));
  if (mixed && asked(outputs.logits)) answer.set(outputs.logits, {labels}, all.substr(12 + bytes, bytes));
  if (ordered) answer.set(outputs.logits, {cascade.spec.labels}, all.substr(12 + bytes));
  return answer;
}

}  // namespace arlo::gateway
