#include "gateway/admin_service.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <mutex>

#include "gateway/encode.h"

namespace arlo::gateway {
namespace {

// One WatchStats stream; deletes itself when gRPC is done with it.
class StatsStream final : public grpc::ServerWriteReactor<v1::Stats> {
 public:
  StatsStream(Router& router, const v1::WatchStatsRequest& request)
      : router_(router), interval_(request.interval_ms()), once_(request.once()) {
    if (!once_ && (request.interval_ms() < 100 || request.interval_ms() > 60000)) {
      Finish({grpc::StatusCode::INVALID_ARGUMENT, "interval_ms must be 100 to 60000"});
      return;
    }
    write();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (!ok || once_ || cancelled_) {
      Finish(grpc::Status::OK);
      return;
    }
    alarm_set_ = true;
    alarm_.Set(std::chrono::system_clock::now() + interval_, [this](bool) { alarm_rang(); });
  }
  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (alarm_set_) alarm_.Cancel();  // alarm_rang() follows at once
  }
  void OnDone() override { delete this; }

 private:
  void alarm_rang() {
    std::unique_lock lock(mutex_);
    alarm_set_ = false;
    if (cancelled_) {
      lock.unlock();  // Finish may let another thread delete this before it returns
      Finish(grpc::Status::OK);
    } else {
      write();
    }
  }
  void write() {
    stats_.Clear();
    router_.stats(&stats_);
    StartWrite(&stats_);
  }

  Router& router_;
  const std::chrono::milliseconds interval_;
  const bool once_;
  v1::Stats stats_;
  grpc::Alarm alarm_;
  std::mutex mutex_;
  bool alarm_set_ = false;
  bool cancelled_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* AdminService::Apply(grpc::CallbackServerContext* context, const v1::ApplyRequest* request,
                                              v1::ApplyReply* reply) {
  auto* reactor = context->DefaultReactor();
  const auto fault = router_.apply(request->deployment(), reply);
  reactor->Finish(fault ? to_status(*fault) : grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                              v1::DrainReply*) {
  auto* reactor = context->DefaultReactor();
  const std::string id = request->instance();
  const auto timeout_ms = request->timeout_ms();
  const auto fault = router_.drain(id, TimeNs{timeout_ms} * 1'000'000, [reactor, id, timeout_ms](bool drained) {
    reactor->Finish(drained ? grpc::Status::OK
                            : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                                           "instance '" + id + "' still drains after " + std::to_string(timeout_ms) + " ms"));
  });
  if (fault) reactor->Finish(to_status(*fault));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::GetDeployment(grpc::CallbackServerContext* context,
                                                      const v1::GetDeploymentRequest*, v1::GetDeploymentReply* reply) {
  *reply->mutable_deployment() = router_.deployment();
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::Stats>* AdminService::WatchStats(grpc::CallbackServerContext*,
                                                              const v1::WatchStatsRequest* request) {
  return new StatsStream(router_, *request);
}

}  // namespace arlo::gateway
