#include "gateway/front/infer_call.h"

#include <memory>
#include <string>
#include <utility>

#include "gateway/fleet/lane.h"
#include "gateway/front/encode.h"

namespace arlo::gateway {
namespace {
constexpr std::size_t kLong = 64 << 10;  // bytes of texts that would keep the lane's thread from others
}

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
  long_ = bytes.size() > kLong;
  if (const auto refusal = service_.open(std::move(bytes), *server_call_, false, this)) return bound(refusal);
  bind();
}

void InferCall::bind() {
  if (!long_ || !request.has_text()) return bound(service_.bind(false, this));
  binding_ = true;
  auto refusal = std::make_shared<MaybeFault>();
  lane->aside().run(
      reinterpret_cast<const void*>(client), [this, refusal] { *refusal = service_.bind(false, this); },
      [this, refusal] {
        binding_ = false;
        bound(*refusal);
      });
}

void InferCall::bound(const MaybeFault& refusal) {
  if (closed_) {  // the client has gone meanwhile
    service_.count_refused(*this, {Code::kCancelled, "cancelled by the client"});
    return release();
  }
  if (const auto job = refusal ? text::wanted_of(text_job) : nullptr) {
    return service_.let_help(job, deadline_ns, *lane, [this] { bind(); });
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
  if (!binding_) text::drop(text_job);
  // The client has gone, or was sent away, before it had its answer.
  if (submitted_ && !completed_) router->cancel(*this);
  closed_ = true;
  release();
}

void InferCall::release() {
  if (!closed_ || binding_ || (submitted_ && !completed_)) return;
  auto& service = service_;
  delete this;
  service.call_over();
}

}  // namespace arlo::gateway
