#include "gateway/front/infer_call.h"

#include <string>

#include "gateway/front/encode.h"

namespace arlo::gateway {

InferCall::InferCall(DataService& service, grpc::ServerCompletionQueue& call_queue)
    : service_(service), queue_(call_queue) {
  queue = &queue_;
  context_.AsyncNotifyWhenDone(over_.tag());
  service_.RequestModelInfer(&context_, &incoming_, &writer_, &queue_, &queue_, received_.tag());
}

void InferCall::received(bool ok) {
  if (!ok) {  // the server shuts down; `over` never comes for a call that never was
    delete this;
    return;
  }
  service_.call_received();
  new InferCall(service_, queue_);
  const auto fault = service_.receive(incoming_, context_, false, this);
  incoming_.Clear();
  if (fault) {
    service_.count_refused(*this, *fault);
    writer_.FinishWithError(to_status(*fault), finished_.tag());
  } else {
    router->submit(*this);
  }
}

void InferCall::complete() {
  grpc::ByteBuffer answer;
  if (const auto fault = encode_answer(*this, false, service_.max_message_bytes(), &answer)) {
    if (fault->predicted_ms != 0) context_.AddTrailingMetadata(kPredictedMs, std::to_string(fault->predicted_ms));
    writer_.FinishWithError(to_status(*fault), finished_.tag());
  } else {
    service_.unsent().add(unsent_, context_, answer.Length());
    writer_.Finish(answer, grpc::Status::OK, finished_.tag());
  }
}

void InferCall::over(bool) {
  if (context_.IsCancelled() && router != nullptr) router->cancel(*this);
  release();
}

void InferCall::finished(bool) {
  service_.unsent().remove(unsent_);
  release();
}

void InferCall::release() {
  if (events_left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  auto& service = service_;
  delete this;
  service.call_over();
}

}  // namespace arlo::gateway
