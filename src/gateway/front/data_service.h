// The data port: Triton's GRPCInferenceService for the logical model.
//
// ModelInfer and ModelStreamInfer take and give raw bytes (see wire.h); the rest are ordinary messages made from the
// deployment. What a gateway in front of several workers cannot honour is UNIMPLEMENTED with the reason.
#pragma once

#include <arlo/v1/config.pb.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "gateway/desk/call.h"
#include "gateway/desk/models.h"
#include "gateway/front/unsent.h"
#include "kserve_grpc.h"

namespace arlo::gateway {

class StreamCall;

using KServe = inference::GRPCInferenceService;

// KServe::AsyncService with the two data methods raw; generated methods cannot be made raw afterwards.
// clang-format off
using DataServiceBase =
    KServe::WithRawMethod_ModelInfer<KServe::WithRawMethod_ModelStreamInfer<
    KServe::WithAsyncMethod_ServerLive<KServe::WithAsyncMethod_ServerReady<
    KServe::WithAsyncMethod_ModelReady<KServe::WithAsyncMethod_ServerMetadata<
    KServe::WithAsyncMethod_ModelMetadata<KServe::WithAsyncMethod_ModelConfig<
    KServe::WithAsyncMethod_ModelStatistics<KServe::WithAsyncMethod_RepositoryIndex<
    KServe::WithAsyncMethod_RepositoryModelLoad<KServe::WithAsyncMethod_RepositoryModelUnload<
    KServe::WithAsyncMethod_SystemSharedMemoryStatus<KServe::WithAsyncMethod_SystemSharedMemoryRegister<
    KServe::WithAsyncMethod_SystemSharedMemoryUnregister<KServe::WithAsyncMethod_CudaSharedMemoryStatus<
    KServe::WithAsyncMethod_CudaSharedMemoryRegister<KServe::WithAsyncMethod_CudaSharedMemoryUnregister<
    KServe::WithAsyncMethod_TraceSetting<KServe::WithAsyncMethod_LogSettings<
    KServe::Service>>>>>>>>>>>>>>>>>>>>;
// clang-format on

class DataService final : public DataServiceBase {
 public:
  // `token`: bearer token that every call must carry; empty: none.
  DataService(Models& models, const v1::GatewayConfig& config, std::string token);

  // Open streams end once what they have asked for is answered; new requests on them are refused.
  void shut_down_streams();

  // Waits for calls of every method on this queue, from now on.
  void serve(grpc::ServerCompletionQueue& queue);

  // Every ModelInfer call and stream says when it has been received and when it is over. Once the server is shut down
  // and wait_until_over() has returned, none of them starts anything on the queues any more.
  void call_received() { open_calls_.fetch_add(1, std::memory_order_relaxed); }
  void call_over() {
    if (open_calls_.fetch_sub(1, std::memory_order_acq_rel) == 1) open_calls_.notify_all();
  }
  void wait_until_over() const;

  using Context = grpc::ServerContext;

  // Parses and checks what was received; a fault, or a call ready for submit() of its router.
  MaybeFault receive(const grpc::ByteBuffer& body, const Context& context, bool streamed, Call* call) const;
  [[nodiscard]] MaybeFault authorize(const Context& context) const;
  // Who asks, for fairness: the authorization that is sent, or else the connection.
  [[nodiscard]] std::uint64_t client_of(const Context& context) const;
  // A request refused before it had rows, for the books of its model, if it named one.
  void count_refused(const Call& call, const Fault& fault) const;
  [[nodiscard]] UnsentAnswers& unsent() { return unsent_; }
  [[nodiscard]] std::uint64_t max_message_bytes() const { return config_.max_message_bytes(); }

 private:
  friend class StreamCall;

  template <class Request, class Response>
  using Handler = grpc::Status (DataService::*)(const Context&, const Request&, Response*) const;

  void serve_info(grpc::ServerCompletionQueue& queue);
  template <class Request, class Response, class Accept>
  void serve_method(grpc::ServerCompletionQueue& queue, Accept accept, Handler<Request, Response> handler);
  grpc::Status server_live(const Context&, const inference::ServerLiveRequest&, inference::ServerLiveResponse*) const;
  grpc::Status server_ready(const Context&, const inference::ServerReadyRequest&,
                            inference::ServerReadyResponse*) const;
  grpc::Status model_ready(const Context&, const inference::ModelReadyRequest&, inference::ModelReadyResponse*) const;
  grpc::Status server_metadata(const Context&, const inference::ServerMetadataRequest&,
                               inference::ServerMetadataResponse*) const;
  grpc::Status model_metadata(const Context&, const inference::ModelMetadataRequest&,
                              inference::ModelMetadataResponse*) const;
  grpc::Status model_config(const Context&, const inference::ModelConfigRequest&,
                            inference::ModelConfigResponse*) const;
  grpc::Status model_statistics(const Context&, const inference::ModelStatisticsRequest&,
                                inference::ModelStatisticsResponse*) const;
  grpc::Status repository_index(const Context&, const inference::RepositoryIndexRequest&,
                                inference::RepositoryIndexResponse*) const;
  // The model and its router, or why there is none by this name and version.
  MaybeFault find_model(const Context& context, std::string_view name, std::string_view version, Router** router,
                        std::shared_ptr<const ModelSpec>* model) const;

  Models& models_;
  const v1::GatewayConfig& config_;
  const std::string token_;
  RequestLimits limits_;
  UnsentAnswers unsent_;

  std::atomic<std::uint64_t> open_calls_{0};
  std::mutex streams_mutex_;
  bool closing_ = false;
  std::unordered_set<StreamCall*> streams_;
};

}  // namespace arlo::gateway
