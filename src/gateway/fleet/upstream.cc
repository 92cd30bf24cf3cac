#include "gateway/fleet/upstream.h"

#include <string>
#include <utility>
#include <vector>

#include "gateway/desk/journey.h"

namespace arlo::gateway {
namespace {

constexpr std::string_view kInferMethod = "/inference.GRPCInferenceService/ModelInfer";

bool contains(const std::string& text, const char* what) { return text.find(what) != std::string::npos; }

}  // namespace

UpstreamCall::UpstreamCall(UpstreamListener& listener, std::span<Row* const> rows, std::shared_ptr<Instance> instance,
                           const RuntimeInfo& runtime, std::int32_t tokens)
    : listener_(listener),
      instance_(std::move(instance)),
      runtime_(runtime),
      tokens_(tokens),
      lane_(*rows.front()->call->lane),
      many_(rows.size() > 1 ? std::make_unique<Part[]>(rows.size()) : nullptr),
      parts_(many_ == nullptr ? &one_ : many_.get(), rows.size()),
      rows_(rows.size()) {
  bool own = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Part& part = parts_[i];
    part.upstream_ = this;
    part.call_ = rows[i]->call;
    part.request_ = &worded(*rows[i]);
    part.index_ = rows[i]->index;
    part.handle_ = rows[i]->handle;
    part.outputs_ = rows[i]->call->request.outputs();
    if (const auto* journey = rows[i]->journey.get(); journey != nullptr) {
      part.outputs_ = rows[i]->call->model->cascade->asks(static_cast<std::size_t>(journey->stage), part.outputs_);
      part.tokens_ = journey->tokens;
    }
    part.row_.store(rows[i], std::memory_order_relaxed);
    if (const auto* trace = rows[i]->call->trace.get();
        trace != nullptr && (trace_.empty() || (trace->own != 0 && !own))) {
      trace_ = trace->for_worker(rows[i]->index, rows[i]->attempts + 1);
      own = trace->own != 0;
    }
  }
}

bool UpstreamCall::leave_out(Part& part) {
  part.left_out = part.dropped = true;
  part.take();
  return --rows_ > 0;
}

void UpstreamCall::start() {
  lane_.loop().run_here([this] { send(); });
}

std::string UpstreamCall::write() {
  std::vector<WorkerRequest::Row> rows;
  rows.reserve(rows_);
  for (const Part& part : parts_) {
    if (!part.left_out) rows.push_back({part.request_, part.index_, part.outputs_, part.tokens_.get()});
  }
  const WorkerRequest request(rows, runtime_, tokens_);
  outputs_ = request.outputs();
  std::string body(request.size(), '\0');
  request.write(body.data());
  for (const Part& part : parts_) {
    if (!part.left_out) part.call_->let_go();
  }
  return body;
}

void UpstreamCall::send() {
  lane_.to(instance_->endpoint)
      .call(
          kInferMethod, write(),
          [this](transport::Answer answer) {
            listener_.upstream_done(*this, std::move(answer));
            delete this;
          },
          std::move(trace_));
}

MaybeFault UpstreamCall::take_all(const std::shared_ptr<const std::string>& body) {
  const Row* first = nullptr;
  for (Part& part : parts_) {
    part.answered = part.take();
    if (first == nullptr) first = part.answered;
  }
  if (body == nullptr || first == nullptr) return {};
  WorkerResponse answer;
  if (auto fault = answer.parse(*body, *first->call->model, outputs_, rows_, tokens_)) return fault;
  std::size_t at = 0;
  for (const Part& part : parts_) {
    if (part.left_out) continue;
    if (Row* row = part.answered; row != nullptr) {
      row->response = body;
      row->parsed = answer.row(at, part.outputs_);
    }
    ++at;
  }
  return {};
}

Reply classify(const transport::Answer& answer) {
  const std::string& text = answer.message;
  if (answer.lost) return Reply::kDead;
  switch (static_cast<Code>(answer.status)) {
    case Code::kOk:
      return Reply::kGood;
    case Code::kUnavailable:
      if (contains(text, "Exceeds maximum queue size")) return Reply::kBusy;
      if (contains(text, "Request timeout expired")) return Reply::kExpired;
      return Reply::kDead;
    case Code::kNotFound:
      return Reply::kMissing;
    case Code::kDeadlineExceeded:
      return Reply::kExpired;
    case Code::kCancelled:  // not by us: the server dropped the call while shutting down
      return Reply::kDead;
    case Code::kInvalidArgument:
      return Reply::kRefused;
    case Code::kInternal:
      // A dead Python stub: Triton still reports its model ready and fails each request after a second.
      if (contains(text, "Stub process") && contains(text, "is not healthy")) return Reply::kDead;
      return Reply::kError;
    default:
      return Reply::kError;
  }
}

}  // namespace arlo::gateway
