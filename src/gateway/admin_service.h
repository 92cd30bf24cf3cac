// The admin port: proto/arlo/v1/admin.proto.
#pragma once

#include <arlo/v1/admin.grpc.pb.h>
#include <grpcpp/grpcpp.h>

#include "gateway/router.h"

namespace arlo::gateway {

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(Router& router) : router_(router) {}

  grpc::ServerUnaryReactor* Apply(grpc::CallbackServerContext* context, const v1::ApplyRequest* request,
                                  v1::ApplyReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainReply* reply) override;
  grpc::ServerUnaryReactor* GetDeployment(grpc::CallbackServerContext* context, const v1::GetDeploymentRequest* request,
                                          v1::GetDeploymentReply* reply) override;
  grpc::ServerWriteReactor<v1::Stats>* WatchStats(grpc::CallbackServerContext* context,
                                                  const v1::WatchStatsRequest* request) override;

 private:
  Router& router_;
};

}  // namespace arlo::gateway
