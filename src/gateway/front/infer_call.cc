#include "gateway/front/infer_call.h"

#include <memory>
#include <string>
#include <utility>

#include "gateway/fleet/lane.h"
#include "gateway/front/encode.h"

namespace arlo::gateway {

class InferCall::Handler final : public UnaryHandler {
 public:
  Handler(InferCall& infer, transport::ServerCall& call) : UnaryHandler(call), infer_(infer) {}
  void closed(bool) override { infer_.closed(); }

 private:
  void received(std::string bytes) override { infer_.received(std::move(bytes)); }

  InferCall& infer_;
};

std::unique_ptr<transport::CallHandler> InferCall::begin(DataService& service, Lane& lane,
                                                         transport::ServerCall& call) {
  return std::make_unique<Handler>(*new InferCall(service, lane, call), call);
}

InferCall::InferCall(DataService& service, Lane& call_lane, transport::ServerCall& call)
    : service_(service), server_call_(&call) {
  lane = &call_lane;
  service_.call_received();
}

void InferCall::received(std::string bytes) {
  if (const auto refusal = service_.open(std::move(bytes), *server_call_, false, this)) return bound(refusal);
  bind();
}

void InferCall::bind() {
  busy_ = true;
  service_.bind(false, this, [this](const MaybeFault& refusal) {
    busy_ = false;
    bound(refusal);
  });
}

void InferCall::bound(const MaybeFault& refusal) {
  if (closed_) {  // the client has gone meanwhile
    service_.count_refused(*this, {Code::kCancelled, "cancelled by the client"});
    return release();
  }
  if (const auto job = refusal ? text::wanted_of(text_job) : nullptr) {
    return service_.let_help(job, client, text_deadline(), *lane, [this] { bind(); });
  }
  if (refusal) {
    service_.count_refused(*this, *refusal);
    service_.trace(*this, *refusal);
    answer_fault(*server_call_, *refusal);
    return;
  }
  submitted_ = true;
  router->submit(*this);
}

void InferCall::complete() {
  lane->loop().run_here([this] { answer(); });
}

void InferCall::answer() {
  completed_ = true;
  service_.trace(*this, fault);
  if (server_call_ == nullptr) return release();
  busy_ = true;
  encode_answer(*this, false, service_.max_message_bytes(), [this](const MaybeFault& none, std::string bytes) {
    busy_ = false;
    if (server_call_ != nullptr && none) {
      answer_fault(*server_call_, *none);
    } else if (server_call_ != nullptr) {
      server_call_->send(std::move(bytes));
      server_call_->finish(0, {}, {});
    }
    release();
  });
}

void InferCall::closed() {
  server_call_ = nullptr;
  if (busy_) {
    DataService::leave(*this);
  } else {
    text::drop(text_job);
  }
  // The client has gone, or was rejected, before it had its answer.
  if (submitted_ && !completed_) router->cancel(*this);
  closed_ = true;
  release();
}

void InferCall::release() {
  if (!closed_ || busy_ || (submitted_ && !completed_)) return;
  auto& service = service_;
  delete this;
  service.call_over();
}

}  // namespace arlo::gateway
