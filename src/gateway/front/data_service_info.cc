// The rest of the data port: health, metadata, configuration, statistics; and what is refused.
#include <algorithm>

#include "gateway/front/data_service.h"
#include "gateway/front/encode.h"
#include "gateway/front/rpc.h"

namespace arlo::gateway {
namespace {

constexpr const char* kVersion = "1";
constexpr const char* kServerVersion = "0.1.0";

grpc::Status status_of(const MaybeFault& fault) { return fault ? to_status(*fault) : grpc::Status::OK; }

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

void add_statistics(const Models::Served& served, inference::ModelStatistics* out) {
  v1::Stats stats;
  served.router->stats(served.name, &stats);
  const auto histograms = served.router->histograms(served.name);
  out->set_name(stats.model());
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
  set(inference_stats->mutable_fail(),
      stats.outcomes().rejected() + stats.outcomes().expired() + stats.outcomes().cancelled() +
          stats.outcomes().failed(),
      0);
  set(inference_stats->mutable_queue(), answered, histograms.queue.sum_s());
  set(inference_stats->mutable_compute_infer(), answered, histograms.execute.sum_s());
}

}  // namespace

grpc::Status DataService::server_live(const Context& context, const inference::ServerLiveRequest&,
                                      inference::ServerLiveResponse* response) const {
  response->set_live(true);
  return status_of(authorize(context));
}

grpc::Status DataService::server_ready(const Context& context, const inference::ServerReadyRequest&,
                                       inference::ServerReadyResponse* response) const {
  response->set_ready(models_.ready());
  return status_of(authorize(context));
}

grpc::Status DataService::model_ready(const Context& context, const inference::ModelReadyRequest& request,
                                      inference::ModelReadyResponse* response) const {
  Router* router = nullptr;
  std::shared_ptr<const ModelSpec> model;
  auto fault = find_model(context, request.name(), request.version(), &router, &model);
  response->set_ready(!fault && router->ready(request.name()));
  if (fault && fault->code != Code::kUnauthenticated) fault.reset();  // as Triton: an unknown model is not ready
  return status_of(fault);
}

grpc::Status DataService::server_metadata(const Context& context, const inference::ServerMetadataRequest&,
                                          inference::ServerMetadataResponse* response) const {
  response->set_name("arlo");
  response->set_version(kServerVersion);
  return status_of(authorize(context));
}

grpc::Status DataService::model_metadata(const Context& context, const inference::ModelMetadataRequest& request,
                                         inference::ModelMetadataResponse* response) const {
  Router* router = nullptr;
  std::shared_ptr<const ModelSpec> model;
  if (const auto fault = find_model(context, request.name(), request.version(), &router, &model)) {
    return status_of(fault);
  }
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
  return grpc::Status::OK;
}

grpc::Status DataService::model_config(const Context& context, const inference::ModelConfigRequest& request,
                                       inference::ModelConfigResponse* response) const {
  Router* router = nullptr;
  std::shared_ptr<const ModelSpec> model;
  if (const auto fault = find_model(context, request.name(), request.version(), &router, &model)) {
    return status_of(fault);
  }
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
  std::string token_level;
  for (const auto& output : model->outputs) {
    if (output.token_level) token_level += (token_level.empty() ? "" : ",") + output.name;
  }
  auto& parameters = *config->mutable_parameters();
  parameters["token_level_outputs"].set_string_value(token_level);
  parameters["max_length"].set_string_value(std::to_string(model->longest));
  parameters["slo_ms"].set_string_value(std::to_string(model->slo_ns / 1'000'000));
  parameters["default_timeout_ms"].set_string_value(std::to_string(model->default_timeout_ns / 1'000'000));
  return grpc::Status::OK;
}

grpc::Status DataService::model_statistics(const Context& context, const inference::ModelStatisticsRequest& request,
                                           inference::ModelStatisticsResponse* response) const {
  std::vector<Models::Served> served;
  if (request.name().empty()) {  // all models
    if (const auto fault = authorize(context)) return status_of(fault);
    served = models_.served();
    if (served.empty()) return to_status({Code::kUnavailable, "the gateway has no deployment yet"});
  } else {
    std::shared_ptr<const ModelSpec> model;
    served.push_back({request.name(), nullptr});
    const auto fault = find_model(context, request.name(), request.version(), &served.front().router, &model);
    if (fault) return status_of(fault);
  }
  for (const auto& one : served) add_statistics(one, response->add_model_stats());
  return grpc::Status::OK;
}

grpc::Status DataService::repository_index(const Context& context, const inference::RepositoryIndexRequest& request,
                                           inference::RepositoryIndexResponse* response) const {
  if (const auto fault = authorize(context)) return status_of(fault);
  for (const auto& [name, router] : models_.served()) {
    const bool ready = router->ready(name);
    if (request.ready() && !ready) continue;
    auto* index = response->add_models();
    index->set_name(name);
    index->set_version(kVersion);
    index->set_state(ready ? "READY" : "UNAVAILABLE");
  }
  return grpc::Status::OK;
}

namespace {

template <class Request, class Response>
void refuse(
    grpc::ServerCompletionQueue& queue,
    typename std::function<void(grpc::ServerContext*, Request*, grpc::ServerAsyncResponseWriter<Response>*, void*)>
        accept,
    const char* why) {
  using Method = UnaryMethod<Request, Response>;
  Method::serve(std::make_shared<const typename Method::Spec>(
      typename Method::Spec{&queue, std::move(accept), [why](const auto&, const auto&, auto*, const auto& done) {
                              done(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, why));
                            }}));
}

}  // namespace

// One line a method: its name, and the handler or the reason for which it is refused.
#define ARLO_SERVE(name, handler)                                    \
  serve_method<inference::name##Request, inference::name##Response>( \
      queue, [this, q = &queue](auto* c, auto* r, auto* w, void* tag) { Request##name(c, r, w, q, q, tag); }, handler)
#define ARLO_REFUSE(name, why)                                 \
  refuse<inference::name##Request, inference::name##Response>( \
      queue, [this, q = &queue](auto* c, auto* r, auto* w, void* tag) { Request##name(c, r, w, q, q, tag); }, why)

template <class Request, class Response, class Accept>
void DataService::serve_method(grpc::ServerCompletionQueue& queue, Accept accept, Handler<Request, Response> handler) {
  using Method = UnaryMethod<Request, Response>;
  Method::serve(std::make_shared<const typename Method::Spec>(typename Method::Spec{
      &queue, std::move(accept),
      [this, handler](const Context& context, const Request& request, Response* response, const auto& done) {
        done((this->*handler)(context, request, response));
      }}));
}

void DataService::serve_info(grpc::ServerCompletionQueue& queue) {
  ARLO_SERVE(ServerLive, &DataService::server_live);
  ARLO_SERVE(ServerReady, &DataService::server_ready);
  ARLO_SERVE(ModelReady, &DataService::model_ready);
  ARLO_SERVE(ServerMetadata, &DataService::server_metadata);
  ARLO_SERVE(ModelMetadata, &DataService::model_metadata);
  ARLO_SERVE(ModelConfig, &DataService::model_config);
  ARLO_SERVE(ModelStatistics, &DataService::model_statistics);
  ARLO_SERVE(RepositoryIndex, &DataService::repository_index);
  ARLO_REFUSE(RepositoryModelLoad, kNoRepositoryControl);
  ARLO_REFUSE(RepositoryModelUnload, kNoRepositoryControl);
  ARLO_REFUSE(SystemSharedMemoryStatus, kNoSharedMemory);
  ARLO_REFUSE(SystemSharedMemoryRegister, kNoSharedMemory);
  ARLO_REFUSE(SystemSharedMemoryUnregister, kNoSharedMemory);
  ARLO_REFUSE(CudaSharedMemoryStatus, kNoSharedMemory);
  ARLO_REFUSE(CudaSharedMemoryRegister, kNoSharedMemory);
  ARLO_REFUSE(CudaSharedMemoryUnregister, kNoSharedMemory);
  ARLO_REFUSE(TraceSetting, kNoSettings);
  ARLO_REFUSE(LogSettings, kNoSettings);
}

#undef ARLO_SERVE
#undef ARLO_REFUSE

}  // namespace arlo::gateway
