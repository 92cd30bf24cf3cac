#include "gateway/fleet/health.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/async_unary_call.h>

#include <chrono>
#include <utility>

#include "gateway/front/rpc.h"

namespace arlo::gateway {
namespace {

// Deletes itself.
class HealthCheck final : public Event {
 public:
  HealthCheck(HealthListener& listener, std::shared_ptr<Instance> instance, std::uint32_t timeout_ms,
              grpc::CompletionQueue& queue)
      : listener_(listener), instance_(std::move(instance)) {
    request_.set_name(instance_->runtime.name);
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
    reader_ = instance_->worker->stub->AsyncModelReady(&context_, request_, &queue);
    reader_->Finish(&response_, &status_, tag());
  }
  void proceed(bool) override {
    listener_.health_done(instance_, status_, response_.ready());
    delete this;
  }

 private:
  HealthListener& listener_;
  std::shared_ptr<Instance> instance_;
  grpc::ClientContext context_;
  inference::ModelReadyRequest request_;
  inference::ModelReadyResponse response_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<inference::ModelReadyResponse>> reader_;
};

}  // namespace

void check_health(HealthListener& listener, const std::shared_ptr<Instance>& instance, std::uint32_t timeout_ms,
                  grpc::CompletionQueue& queue) {
  new HealthCheck(listener, instance, timeout_ms, queue);
}

}  // namespace arlo::gateway
