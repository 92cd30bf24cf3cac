#include "gateway/front/infer_call.h"

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

void InferCall::received(std::string bytes) { go_on(service_.receive(std::move(bytes), *server_call_, false, this)); }

void InferCall::go_on(const MaybeFault& refusal) {
  if (refusal && text_job != nullptr && text_job->wanted()) {
    service_.let_help(text_job, deadline_ns, *lane, [this] { go_on(service_.receive_again(false, this)); });
    return;
  }
  if (refusal) {
    service_.count_refused(*this, *refusal);
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
  if (server_call_ != nullptr) {
    std::string bytes;
    if (const auto none = encode_answer(*this, false, service_.max_message_bytes(), &bytes)) {
      answer_fault(*server_call_, *none);
    } else {
      server_call_->send(std::move(bytes));
      server_call_->finish(0, {}, {});
    }
  }
  release();
}

void InferCall::closed() {
  server_call_ = nullptr;
  if (text_job != nullptr) text_job->dropped = true;
  // The client has gone, or was sent away, before it had its answer.
  if (submitted_ && !completed_) router->cancel(*this);
  closed_ = true;
  release();
}

void InferCall::release() {
  if (!closed_ || (submitted_ && !completed_)) return;
  auto& service = service_;
  delete this;
  service.call_over();
}

}  // namespace arlo::gateway
