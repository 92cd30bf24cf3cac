// The rest of the data port: health, metadata, configuration, statistics; and what is refused.
#include <algorithm>

#include "gateway/data_service.h"
#include "gateway/encode.h"

namespace arlo::gateway {
namespace {

constexpr const char* kVersion = "1";
constexpr const char* kServerVersion = "0.1.0";

DataService::Reactor* finish(grpc::CallbackServerContext* context, const grpc::Status& status) {
  auto* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

DataService::Reactor* finish(grpc::CallbackServerContext* context, const MaybeFault& fault) {
  return finish(context, fault ? to_status(*fault) : grpc::Status::OK);
}

DataService::Reactor* refuse(grpc::CallbackServerContext* context, const char* why) {
  return finish(context, grpc::Status(grpc::StatusCode::UNIMPLEMENTED, why));
}

constexpr const char* kNoSharedMemory =
    "shared memory is not supported: the gateway and the workers need not be on the client's machine; send tensors in "
    "the request";
constexpr const char* kNoRepositoryControl =
    "models are not loaded or unloaded through the data port: the control plane decides what runs where (`arlo serve`)";
constexpr const char* kNoSettings = "trace and log settings belong to one Triton server; set them on the worker";

inference::DataType triton_type(const std::string& datatype) {
  inference::DataType type = inference::TYPE_INVALID;
  const std::string name = datatype == "BYTES" ? "TYPE_STRING" : "TYPE_" + datatype;
  static_cast<void>(inference::DataType_Parse(name, &type));
  return type;
}

}  // namespace

DataService::Reactor* DataService::ServerLive(Context* context, const inference::ServerLiveRequest*,
                                              inference::ServerLiveResponse* response) {
  response->set_live(true);
  return finish(context, authorize(*context));
}

DataService::Reactor* DataService::ServerReady(Context* context, const inference::ServerReadyRequest*,
                                               inference::ServerReadyResponse* response) {
  response->set_ready(router_.ready());
  return finish(context, authorize(*context));
}

DataService::Reactor* DataService::ModelReady(Context* context, const inference::ModelReadyRequest* request,
                                              inference::ModelReadyResponse* response) {
  std::shared_ptr<const ModelSpec> model;
  auto fault = find_model(*context, request->name(), request->version(), &model);
  if (fault && fault->code != Code::kUnauthenticated) fault.reset();  // as Triton: an unknown model is not ready
  response->set_ready(model != nullptr && request->name() == model->name && router_.ready());
  return finish(context, fault);
}

DataService::Reactor* DataService::ServerMetadata(Context* context, const inference::ServerMetadataRequest*,
                                                  inference::ServerMetadataResponse* response) {
  response->set_name("arlo");
  response->set_version(kServerVersion);
  return finish(context, authorize(*context));
}

DataService::Reactor* DataService::ModelMetadata(Context* context, const inference::ModelMetadataRequest* request,
                                                 inference::ModelMetadataResponse* response) {
  std::shared_ptr<const ModelSpec> model;
  if (const auto fault = find_model(*context, request->name(), request->version(), &model)) return finish(context, fault);
  response->set_name(model->name);
  response->add_versions(kVersion);
  response->set_platform("arlo");
  for (const auto& input : model->inputs) {
    auto* tensor = response->add_inputs();
    tensor->set_name(input.name);
    tensor->set_datatype(input.datatype);
    tensor->add_shape(-1);
    tensor->add_shape(-1);
  }
  for (const auto& output : model->outputs) {
    auto* tensor = response->add_outputs();
    tensor->set_name(output.name);
    tensor->set_datatype(output.datatype);
    tensor->add_shape(-1);
    if (output.token_level) tensor->add_shape(-1);
    for (const auto dim : output.dims) tensor->add_shape(dim);
  }
  return finish(context, grpc::Status::OK);
}

DataService::Reactor* DataService::ModelConfig(Context* context, const inference::ModelConfigRequest* request,
                                               inference::ModelConfigResponse* response) {
  std::shared_ptr<const ModelSpec> model;
  if (const auto fault = find_model(*context, request->name(), request->version(), &model)) return finish(context, fault);
  auto* config = response->mutable_config();
  config->set_name(model->name);
  config->set_platform("arlo");
  config->set_backend("arlo");
  config->set_max_batch_size(static_cast<std::int32_t>(limits_.max_rows));
  for (const auto& input : model->inputs) {
    auto* tensor = config->add_input();
    tensor->set_name(input.name);
    tensor->set_data_type(triton_type(input.datatype));
    tensor->add_dims(-1);
    tensor->set_optional(input.optional || input.role == Role::kMask);
  }
  for (const auto& output : model->outputs) {
    auto* tensor = config->add_output();
    tensor->set_name(output.name);
    tensor->set_data_type(triton_type(output.datatype));
    if (output.token_level) tensor->add_dims(-1);
    for (const auto dim : output.dims) tensor->add_dims(dim);
  }
  auto& parameters = *config->mutable_parameters();
  parameters["max_length"].set_string_value(std::to_string(model->longest));
  parameters["slo_ms"].set_string_value(std::to_string(model->slo_ns / 1'000'000));
  parameters["default_timeout_ms"].set_string_value(std::to_string(model->default_timeout_ns / 1'000'000));
  return finish(context, grpc::Status::OK);
}

DataService::Reactor* DataService::ModelStatistics(Context* context, const inference::ModelStatisticsRequest* request,
                                                   inference::ModelStatisticsResponse* response) {
  std::shared_ptr<const ModelSpec> model;
  const std::string name = request->name();
  auto fault = find_model(*context, name, request->version(), &model);
  if (fault && name.empty() && model != nullptr) fault.reset();  // no name: all models, which is this one
  if (fault) return finish(context, fault);
  v1::Stats stats;
  router_.stats(&stats);
  const auto histograms = router_.histograms();
  auto* out = response->add_model_stats();
  out->set_name(model->name);
  out->set_version(kVersion);
  const auto answered = stats.outcomes().on_time() + stats.outcomes().late();
  out->set_inference_count(answered);
  out->set_execution_count(answered);
  auto* inference_stats = out->mutable_inference_stats();
  auto set = [](inference::StatisticDuration* duration, std::uint64_t count, double seconds) {
    duration->set_count(count);
    duration->set_ns(static_cast<std::uint64_t>(seconds * 1e9));
  };
  set(inference_stats->mutable_success(), answered, histograms.total.sum_s());
  set(inference_stats->mutable_fail(), stats.outcomes().rejected() + stats.outcomes().expired() +
                                           stats.outcomes().cancelled() + stats.outcomes().failed(), 0);
  set(inference_stats->mutable_queue(), answered, histograms.queue.sum_s());
  set(inference_stats->mutable_compute_infer(), answered, histograms.execute.sum_s());
  return finish(context, grpc::Status::OK);
}

DataService::Reactor* DataService::RepositoryIndex(Context* context, const inference::RepositoryIndexRequest* request,
                                                   inference::RepositoryIndexResponse* response) {
  if (const auto fault = authorize(*context)) return finish(context, fault);
  if (const auto model = router_.model(); model != nullptr && (!request->ready() || router_.ready())) {
    auto* index = response->add_models();
    index->set_name(model->name);
    index->set_version(kVersion);
    index->set_state(router_.ready() ? "READY" : "UNAVAILABLE");
  }
  return finish(context, grpc::Status::OK);
}

DataService::Reactor* DataService::RepositoryModelLoad(Context* context, const inference::RepositoryModelLoadRequest*,
                                                       inference::RepositoryModelLoadResponse*) {
  return refuse(context, kNoRepositoryControl);
}
DataService::Reactor* DataService::RepositoryModelUnload(Context* context, const inference::RepositoryModelUnloadRequest*,
                                                         inference::RepositoryModelUnloadResponse*) {
  return refuse(context, kNoRepositoryControl);
}
DataService::Reactor* DataService::SystemSharedMemoryStatus(Context* context,
                                                            const inference::SystemSharedMemoryStatusRequest*,
                                                            inference::SystemSharedMemoryStatusResponse*) {
  return refuse(context, kNoSharedMemory);
}
DataService::Reactor* DataService::SystemSharedMemoryRegister(Context* context,
                                                              const inference::SystemSharedMemoryRegisterRequest*,
                                                              inference::SystemSharedMemoryRegisterResponse*) {
  return refuse(context, kNoSharedMemory);
}
DataService::Reactor* DataService::SystemSharedMemoryUnregister(Context* context,
                                                                const inference::SystemSharedMemoryUnregisterRequest*,
                                                                inference::SystemSharedMemoryUnregisterResponse*) {
  return refuse(context, kNoSharedMemory);
}
DataService::Reactor* DataService::CudaSharedMemoryStatus(Context* context,
                                                          const inference::CudaSharedMemoryStatusRequest*,
                                                          inference::CudaSharedMemoryStatusResponse*) {
  return refuse(context, kNoSharedMemory);
}
DataService::Reactor* DataService::CudaSharedMemoryRegister(Context* context,
                                                            const inference::CudaSharedMemoryRegisterRequest*,
                                                            inference::CudaSharedMemoryRegisterResponse*) {
  return refuse(context, kNoSharedMemory);
}
DataService::Reactor* DataService::CudaSharedMemoryUnregister(Context* context,
                                                              const inference::CudaSharedMemoryUnregisterRequest*,
                                                              inference::CudaSharedMemoryUnregisterResponse*) {
  return refuse(context, kNoSharedMemory);
}
DataService::Reactor* DataService::TraceSetting(Context* context, const inference::TraceSettingRequest*,
                                                inference::TraceSettingResponse*) {
  return refuse(context, kNoSettings);
}
DataService::Reactor* DataService::LogSettings(Context* context, const inference::LogSettingsRequest*,
                                               inference::LogSettingsResponse*) {
  return refuse(context, kNoSettings);
}

}  // namespace arlo::gateway
