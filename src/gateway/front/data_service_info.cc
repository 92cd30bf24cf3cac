// The rest of the data port: health, metadata, configuration, statistics, and unsupported methods.
#include <health/health.pb.h>

#include <nlohmann/json.hpp>

#include "gateway/fleet/cascade.h"
#include "gateway/front/api/task.h"
#include "gateway/front/data_service.h"
#include "kserve.h"

namespace arlo::gateway {
namespace {

constexpr const char* kVersion = "1";

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

// The requested model, or all models.
struct Asked {
  Router* router = nullptr;
  std::shared_ptr<const ModelSpec> model;
};

std::vector<OutputSpec> visible(const ModelSpec& model) {
  std::vector<OutputSpec> outputs;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    if ((model.inner >> i & 1) != 0) continue;
    outputs.push_back(model.outputs[i]);
    if (model.flow == nullptr && model.cut_to() != 0 && model.vector_output(false) == static_cast<int>(i))
      outputs.back().dims = {model.cut_to()};
  }
  return outputs;
}

// Token ids and their companion inputs; empty for a cascade whose stages have different vocabularies, which takes text.
const std::vector<InputSpec>& tokens_of(const ModelSpec& model) {
  static const std::vector<InputSpec> none;
  return model.wordings.empty() ? model.inputs : none;
}

// Inputs that replace all others.
std::vector<std::string_view> texts_of(const ModelSpec& model) {
  if (!model.takes_text()) return {};
  if (model.flow != nullptr) return {kText};
  return {kText, kTextPair};
}

void fill(const ModelSpec& model, inference::ModelMetadataResponse* response) {
  response->set_name(model.name);
  response->add_versions(kVersion);
  response->set_platform("arlo");
  const auto add = [](auto* tensor, std::string_view name, const std::string& datatype, bool of_tokens,
                      const std::vector<std::int64_t>& dims) {
    tensor->set_name(std::string(name));
    tensor->set_datatype(datatype);
    tensor->add_shape(-1);
    if (of_tokens) tensor->add_shape(-1);
    for (const auto dim : dims) tensor->add_shape(dim);
  };
  for (const auto& input : tokens_of(model)) {
    add(response->add_inputs(), input.name, input.datatype, input.role != Role::kTensor, input.dims);
  }
  for (const auto name : texts_of(model)) add(response->add_inputs(), name, "BYTES", false, {1});
  for (const auto& output : visible(model)) {
    add(response->add_outputs(), output.name, output.datatype, output.token_level, output.dims);
  }
}

// The input set by the parameter `task`; null: there is none.
const InputSpec* task_of(const ModelSpec& model) {
  return model.task < 0 ? nullptr : &model.inputs[static_cast<std::size_t>(model.task)];
}

void fill(const ModelSpec& model, std::uint32_t max_rows, inference::ModelConfig* config) {
  config->set_name(model.name);
  config->set_platform("arlo");
  config->set_backend("arlo");
  config->set_max_batch_size(static_cast<std::int32_t>(max_rows));
  const auto add = [](auto* tensor, std::string_view name, const std::string& datatype, bool of_tokens,
                      const std::vector<std::int64_t>& dims) {
    tensor->set_name(std::string(name));
    tensor->set_data_type(triton_type(datatype));
    if (of_tokens) tensor->add_dims(-1);
    for (const auto dim : dims) tensor->add_dims(dim);
    return tensor;
  };
  for (const auto& input : tokens_of(model)) {
    add(config->add_input(), input.name, input.datatype, input.role != Role::kTensor, input.dims)
        ->set_optional(input.optional || input.role == Role::kMask || &input == task_of(model));
  }
  for (const auto name : texts_of(model)) {
    add(config->add_input(), name, "BYTES", false, {1})->set_optional(model.wordings.empty() || name == kTextPair);
  }
  std::string token_level;
  for (const auto& output : visible(model)) {
    add(config->add_output(), output.name, output.datatype, output.token_level, output.dims);
    if (output.token_level) token_level += (token_level.empty() ? "" : ",") + output.name;
  }
  auto& parameters = *config->mutable_parameters();
  parameters["token_level_outputs"].set_string_value(token_level);
  if (model.cascade != nullptr && !model.cascade->labels.empty()) {
    parameters["labels"].set_string_value(nlohmann::json(model.cascade->labels).dump());
  }
  if (!model.tasks.empty()) {
    auto tasks = nlohmann::ordered_json::object();  // in numeric order
    for (const auto& task : model.tasks) tasks[task.name] = task.labels;
    parameters["tasks"].set_string_value(tasks.dump());
  }
  if (model.label_activation != Activation::kUsual) {
    parameters["label_activation"].set_string_value(std::string(activation_name(model.label_activation)));
  }
  parameters["max_length"].set_string_value(std::to_string(model.longest));
  parameters["slo_ms"].set_string_value(std::to_string(model.slo_ns / 1'000'000));
  parameters["default_timeout_ms"].set_string_value(std::to_string(model.default_timeout_ns / 1'000'000));
}

// Wraps a method of ordinary messages as one of bytes. `handle`: (context, request, response) -> MaybeFault.
template <class Request, class Response, class Handle>
DataService::Method of(Handle handle) {
  return [handle](const DataService::Context& context, const std::string& bytes, std::string* out) -> MaybeFault {
    Request request;
    if (!request.ParseFromString(bytes)) {
      return invalid("the request is no " + std::string(Request::descriptor()->full_name()));
    }
    Response response;
    if (auto fault = handle(context, request, &response)) return fault;
    *out = response.SerializeAsString();
    return {};
  };
}

DataService::Method refused(const char* why) {
  return [why](const auto&, const auto&, auto*) { return Fault{Code::kUnimplemented, why}; };
}

}  // namespace

void DataService::add_methods() {
  using namespace inference;  // NOLINT(google-build-using-namespace): the messages of the service
  const auto add = [this](const std::string& name, Method method) {
    methods_.emplace("/inference.GRPCInferenceService/" + name, std::move(method));
  };
  add("ServerLive",
      of<ServerLiveRequest, ServerLiveResponse>([this](const Context& context, const auto&, auto* response) {
        response->set_live(true);
        return authorize(context);
      }));
  add("ServerReady",
      of<ServerReadyRequest, ServerReadyResponse>([this](const Context& context, const auto&, auto* response) {
        response->set_ready(models_.ready());
        return authorize(context);
      }));
  add("ModelReady",
      of<ModelReadyRequest, ModelReadyResponse>([this](const Context& context, const auto& request, auto* response) {
        Asked asked;
        auto fault = find_model(context, request.name(), request.version(), &asked.router, &asked.model);
        response->set_ready(!fault && asked.router->ready(asked.model->name));
        if (fault && fault->code != Code::kUnauthenticated) fault.reset();  // as Triton: an unknown one is not ready
        return fault;
      }));
  add("ServerMetadata",
      of<ServerMetadataRequest, ServerMetadataResponse>([this](const Context& context, const auto&, auto* response) {
        response->set_name("arlo");
        response->set_version(kServerVersion);
        return authorize(context);
      }));
  add("ModelMetadata", of<ModelMetadataRequest, ModelMetadataResponse>([this](const Context& context,
                                                                              const auto& request, auto* response) {
        Asked asked;
        auto fault = find_model(context, request.name(), request.version(), &asked.router, &asked.model);
        if (!fault) fill(*asked.model, response);
        return fault;
      }));
  add("ModelConfig",
      of<ModelConfigRequest, ModelConfigResponse>([this](const Context& context, const auto& request, auto* response) {
        Asked asked;
        auto fault = find_model(context, request.name(), request.version(), &asked.router, &asked.model);
        if (!fault) fill(*asked.model, limits_.max_rows, response->mutable_config());
        return fault;
      }));
  add("ModelStatistics", of<ModelStatisticsRequest, ModelStatisticsResponse>(
                             [this](const Context& context, const auto& request, auto* response) -> MaybeFault {
                               std::vector<Models::Served> served;
                               if (request.name().empty()) {  // all models
                                 if (auto fault = authorize(context)) return fault;
                                 served = models_.served();
                                 if (served.empty())
                                   return Fault{Code::kUnavailable, "the gateway has no deployment yet"};
                               } else {
                                 std::shared_ptr<const ModelSpec> model;
                                 served.push_back({request.name(), nullptr});
                                 auto fault = find_model(context, request.name(), request.version(),
                                                         &served.front().router, &model);
                                 if (fault) return fault;
                                 served.front().name = model->name;
                               }
                               for (const auto& one : served) {
                                 if (!one.stage) add_statistics(one, response->add_model_stats());
                               }
                               return {};
                             }));
  add("RepositoryIndex", of<RepositoryIndexRequest, RepositoryIndexResponse>(
                             [this](const Context& context, const auto& request, auto* response) {
                               auto fault = authorize(context);
                               if (fault) return fault;
                               for (const auto& [name, router, stage] : models_.served()) {
                                 if (stage) continue;
                                 const bool ready = router->ready(name);
                                 if (request.ready() && !ready) continue;
                                 auto* index = response->add_models();
                                 index->set_name(name);
                                 index->set_version(kVersion);
                                 index->set_state(ready ? "READY" : "UNAVAILABLE");
                               }
                               return fault;
                             }));
  for (const char* name : {"RepositoryModelLoad", "RepositoryModelUnload"}) add(name, refused(kNoRepositoryControl));
  for (const char* name : {"SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
                           "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"}) {
    add(name, refused(kNoSharedMemory));
  }
  for (const char* name : {"TraceSetting", "LogSettings"}) add(name, refused(kNoSettings));

  // SERVING while the gateway is ready. Needs no token, because probes carry none.
  using grpc::health::v1::HealthCheckRequest;
  using grpc::health::v1::HealthCheckResponse;
  methods_.emplace(
      "/grpc.health.v1.Health/Check",
      of<HealthCheckRequest, HealthCheckResponse>(
          [this](const Context&, const auto& request, auto* response) -> MaybeFault {
            if (!request.service().empty() && request.service() != "inference.GRPCInferenceService") {
              return Fault{Code::kNotFound, "unknown service '" + request.service() + "'"};
            }
            response->set_status(models_.ready() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
            return {};
          }));
}

}  // namespace arlo::gateway
