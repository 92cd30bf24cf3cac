#include "gateway/desk/audit.h"

#include <algorithm>

#include "gateway/desk/flow_call.h"
#include "gateway/desk/journey.h"
#include "gateway/desk/judge.h"

namespace arlo::gateway {
namespace {

constexpr std::int32_t kOtherwise = 1 << 30;  // a label that no answer has: the numbers of answers differ

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

}  // namespace arlo::gateway
