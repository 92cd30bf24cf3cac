// The data port: Triton's GRPCInferenceService for the logical model.
//
// ModelInfer and ModelStreamInfer take and give raw bytes (see wire.h); the rest are ordinary messages made from the
// deployment. What a gateway in front of several workers cannot honour is UNIMPLEMENTED with the reason.
#pragma once

#include <arlo/v1/config.pb.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "gateway/call.h"
#include "gateway/router.h"
#include "kserve_grpc.h"

namespace arlo::gateway {

class StreamReactor;

using KServe = inference::GRPCInferenceService;

// KServe::CallbackService with the two data methods raw; generated methods cannot be made raw afterwards.
// clang-format off
using DataServiceBase =
    KServe::WithRawCallbackMethod_ModelInfer<KServe::WithRawCallbackMethod_ModelStreamInfer<
    KServe::WithCallbackMethod_ServerLive<KServe::WithCallbackMethod_ServerReady<
    KServe::WithCallbackMethod_ModelReady<KServe::WithCallbackMethod_ServerMetadata<
    KServe::WithCallbackMethod_ModelMetadata<KServe::WithCallbackMethod_ModelConfig<
    KServe::WithCallbackMethod_ModelStatistics<KServe::WithCallbackMethod_RepositoryIndex<
    KServe::WithCallbackMethod_RepositoryModelLoad<KServe::WithCallbackMethod_RepositoryModelUnload<
    KServe::WithCallbackMethod_SystemSharedMemoryStatus<KServe::WithCallbackMethod_SystemSharedMemoryRegister<
    KServe::WithCallbackMethod_SystemSharedMemoryUnregister<KServe::WithCallbackMethod_CudaSharedMemoryStatus<
    KServe::WithCallbackMethod_CudaSharedMemoryRegister<KServe::WithCallbackMethod_CudaSharedMemoryUnregister<
    KServe::WithCallbackMethod_TraceSetting<KServe::WithCallbackMethod_LogSettings<
    KServe::Service>>>>>>>>>>>>>>>>>>>>;
// clang-format on

class DataService final : public DataServiceBase {
 public:
  // `token`: bearer token that every call must carry; empty: none.
  DataService(Router& router, const v1::GatewayConfig& config, std::string token);

  // Open streams end once what they have asked for is answered; new requests on them are refused.
  void shut_down_streams();

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* ModelInfer(Context* context, const grpc::ByteBuffer* request, grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(Context* context) override;

  Reactor* ServerLive(Context*, const inference::ServerLiveRequest*, inference::ServerLiveResponse*) override;
  Reactor* ServerReady(Context*, const inference::ServerReadyRequest*, inference::ServerReadyResponse*) override;
  Reactor* ModelReady(Context*, const inference::ModelReadyRequest*, inference::ModelReadyResponse*) override;
  Reactor* ServerMetadata(Context*, const inference::ServerMetadataRequest*, inference::ServerMetadataResponse*) override;
  Reactor* ModelMetadata(Context*, const inference::ModelMetadataRequest*, inference::ModelMetadataResponse*) override;
  Reactor* ModelConfig(Context*, const inference::ModelConfigRequest*, inference::ModelConfigResponse*) override;
  Reactor* ModelStatistics(Context*, const inference::ModelStatisticsRequest*,
                           inference::ModelStatisticsResponse*) override;
  Reactor* RepositoryIndex(Context*, const inference::RepositoryIndexRequest*,
                           inference::RepositoryIndexResponse*) override;

  Reactor* RepositoryModelLoad(Context*, const inference::RepositoryModelLoadRequest*,
                               inference::RepositoryModelLoadResponse*) override;
  Reactor* RepositoryModelUnload(Context*, const inference::RepositoryModelUnloadRequest*,
                                 inference::RepositoryModelUnloadResponse*) override;
  Reactor* SystemSharedMemoryStatus(Context*, const inference::SystemSharedMemoryStatusRequest*,
                                    inference::SystemSharedMemoryStatusResponse*) override;
  Reactor* SystemSharedMemoryRegister(Context*, const inference::SystemSharedMemoryRegisterRequest*,
                                      inference::SystemSharedMemoryRegisterResponse*) override;
  Reactor* SystemSharedMemoryUnregister(Context*, const inference::SystemSharedMemoryUnregisterRequest*,
                                        inference::SystemSharedMemoryUnregisterResponse*) override;
  Reactor* CudaSharedMemoryStatus(Context*, const inference::CudaSharedMemoryStatusRequest*,
                                  inference::CudaSharedMemoryStatusResponse*) override;
  Reactor* CudaSharedMemoryRegister(Context*, const inference::CudaSharedMemoryRegisterRequest*,
                                    inference::CudaSharedMemoryRegisterResponse*) override;
  Reactor* CudaSharedMemoryUnregister(Context*, const inference::CudaSharedMemoryUnregisterRequest*,
                                      inference::CudaSharedMemoryUnregisterResponse*) override;
  Reactor* TraceSetting(Context*, const inference::TraceSettingRequest*, inference::TraceSettingResponse*) override;
  Reactor* LogSettings(Context*, const inference::LogSettingsRequest*, inference::LogSettingsResponse*) override;

 private:
  friend class StreamReactor;

  // Parses and checks what was received; a fault, or a call ready for Router::submit.
  MaybeFault receive(const grpc::ByteBuffer& body, const Context& context, bool streamed, Call* call) const;
  [[nodiscard]] MaybeFault authorize(const Context& context) const;
  // The model, or why there is none by this name and version.
  MaybeFault find_model(const Context& context, std::string_view name, std::string_view version,
                        std::shared_ptr<const ModelSpec>* model) const;

  Router& router_;
  const v1::GatewayConfig& config_;
  const std::string token_;
  RequestLimits limits_;

  std::mutex streams_mutex_;
  bool closing_ = false;
  std::unordered_set<StreamReactor*> streams_;
};

}  // namespace arlo::gateway
