#include "gateway/fleet/health.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/async_unary_call.h>

#include <chrono>
#include <optional>
#include <utility>

#include "gateway/front/rpc.h"

namespace arlo::gateway {
namespace {

// Deletes itself.
class HealthCheck final : public Event {
 public:
  HealthCheck(HealthListener& listener, std::shared_ptr<Instance> instance, std::uint32_t timeout_ms,
              grpc::CompletionQueue& queue)
      : listener_(listener),
        instance_(std::move(instance)),
        deadline_(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms)),
        queue_(queue) {
    ask();
  }
  void proceed(bool) override {
    if (status_.ok() && response_.ready() && ++asked_ < instance_->members.size()) {
      ask();
      return;
    }
    listener_.health_done(instance_, status_, response_.ready());
    delete this;
  }

 private:
  void ask() {
    request_.set_name(instance_->members[asked_].runtime.name);
    reader_.reset();  // lives in memory of the call
    context_.emplace();
    context_->set_deadline(deadline_);
    reader_ = instance_->worker->stub->AsyncModelReady(&*context_, request_, &queue_);
    reader_->Finish(&response_, &status_, tag());
  }

  HealthListener& listener_;
  std::shared_ptr<Instance> instance_;
  const std::chrono::system_clock::time_point deadline_;
  grpc::CompletionQueue& queue_;
  std::size_t asked_ = 0;  // runtimes that are ready
  std::optional<grpc::ClientContext> context_;
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
