// The rest of the data port: health, metadata, configuration, statistics, and unsupported methods.
#include <health/health.pb.h>

#include <nlohmann/json.hpp>

#include "gateway/fleet/cascade.h"
#include "gateway/front/api/task.h"
#include "gateway/front/data_service.h"
#include "kserve.h"

namespace arlo::gateway {
namespace {

constexpr const char* kOnlyVersion = "1";
const std::string kService = "/inference.GRPCInferenceService/";

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
  out->set_version(kOnlyVersion);
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

// An input or output as clients see it; `dims` without the rows.
struct Shown {
  std::string_view name, datatype;
  std::vector<std::int64_t> dims;
  bool optional = false;
};

std::vector<Shown> inputs_of(const ModelSpec& model) {
  std::vector<Shown> all;
  for (const auto& input : model.inputs) {
    if (!model.wordings.empty()) break;  // a cascade whose stages have different vocabularies takes text
    // The input `task` is set by the parameter of that name.
    const bool task = model.task >= 0 && &input == &model.inputs[static_cast<std::size_t>(model.task)];
    all.push_back({input.name, input.datatype, input.dims, input.optional || input.role == Role::kMask || task});
    if (input.role != Role::kTensor) all.back().dims = {-1};
  }
  if (!model.takes_text()) return all;
  all.push_back({kText, "BYTES", {1}, model.wordings.empty()});
  if (model.flow == nullptr) all.push_back({kTextPair, "BYTES", {1}, true});
  return all;
}

std::vector<Shown> outputs_of(const ModelSpec& model) {
  std::vector<Shown> all;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const auto& output = model.outputs[i];
    if ((model.inner >> i & 1) != 0) continue;
    auto& shown = all.emplace_back(Shown{output.name, output.datatype, output.dims});
    const bool cut = model.flow == nullptr && model.cut_to() != 0 && model.vector_output(false) == static_cast<int>(i);
    if (cut) shown.dims = {model.cut_to()};
    if (output.token_level) shown.dims.insert(shown.dims.begin(), -1);
  }
  return all;
}

void fill(const ModelSpec& model, inference::ModelMetadataResponse* response) {
  response->set_name(model.name);
  response->add_versions(kOnlyVersion);
  response->set_platform("arlo");
  const auto add = [](auto* tensor, const Shown& shown) {
    tensor->set_name(std::string(shown.name));
    tensor->set_datatype(std::string(shown.datatype));
    tensor->add_shape(-1);
    for (const auto dim : shown.dims) tensor->add_shape(dim);
  };
  for (const auto& input : inputs_of(model)) add(response->add_inputs(), input);
  for (const auto& output : outputs_of(model)) add(response->add_outputs(), output);
}

void fill(const ModelSpec& model, std::uint32_t max_rows, inference::ModelConfig* config) {
  config->set_name(model.name);
  config->set_platform("arlo");
  config->set_backend("arlo");
  config->set_max_batch_size(static_cast<std::int32_t>(max_rows));
  const auto add = [](auto* tensor, const Shown& shown) {
    tensor->set_name(std::string(shown.name));
    tensor->set_data_type(triton_type(std::string(shown.datatype)));
    for (const auto dim : shown.dims) tensor->add_dims(dim);
  };
  for (const auto& input : inputs_of(model)) {
    auto* const tensor = config->add_input();
    add(tensor, input);
    tensor->set_optional(input.optional);
  }
  for (const auto& output : outputs_of(model)) add(config->add_output(), output);
  auto& parameters = *config->mutable_parameters();
  auto& token_level = *parameters["token_level_outputs"].mutable_string_value();
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    if (!model.outputs[i].token_level || (model.inner >> i & 1) != 0) continue;
    token_level += (token_level.empty() ? "" : ",") + model.outputs[i].name;
  }
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

// Adds a method of GRPCInferenceService, named by its request.
template <class Request, class Response, class Handle>
void DataService::add(Handle handle) {
  std::string name(Request::descriptor()->name());
  name.resize(name.size() - std::string_view("Request").size());
  methods_.emplace(kService + name, of<Request, Response>(std::move(handle)));
}

void DataService::add_methods() {
  using namespace inference;  // NOLINT(google-build-using-namespace): the messages of the service
  add<ServerLiveRequest, ServerLiveResponse>([this](const Context& context, const auto&, auto* response) {
    response->set_live(true);
    return authorize(context);
  });
  add<ServerReadyRequest, ServerReadyResponse>([this](const Context& context, const auto&, auto* response) {
    response->set_ready(models_.ready());
    return authorize(context);
  });
  add<ServerMetadataRequest, ServerMetadataResponse>([this](const Context& context, const auto&, auto* response) {
    response->set_name("arlo");
    response->set_version(kServerVersion);
    return authorize(context);
  });
  add<ModelReadyRequest, ModelReadyResponse>([this](const Context& context, const auto& request, auto* response) {
    Asked asked;
    auto fault = find_model(context, request, &asked);
    response->set_ready(!fault && asked.router->ready(asked.model->name));
    if (fault && fault->code != Code::kUnauthenticated) fault.reset();  // as Triton: an unknown one is not ready
    return fault;
  });
  add<ModelMetadataRequest, ModelMetadataResponse>([this](const Context& context, const auto& request, auto* response) {
    Asked asked;
    auto fault = find_model(context, request, &asked);
    if (!fault) fill(*asked.model, response);
    return fault;
  });
  add<ModelConfigRequest, ModelConfigResponse>([this](const Context& context, const auto& request, auto* response) {
    Asked asked;
    auto fault = find_model(context, request, &asked);
    if (!fault) fill(*asked.model, limits_.max_rows, response->mutable_config());
    return fault;
  });
  add<ModelStatisticsRequest, ModelStatisticsResponse>(
      [this](const Context& context, const auto& request, auto* response) {
        MaybeFault fault;
        std::vector<Models::Served> served;
        if (request.name().empty()) {  // all models
          fault = authorize(context);
          served = models_.served();
          if (!fault && served.empty()) fault = Fault{Code::kUnavailable, "the gateway has no deployment yet"};
        } else {
          Asked asked;
          fault = find_model(context, request, &asked);
          if (!fault) served.push_back({asked.model->name, asked.router});
        }
        for (const auto& one : served) {
          if (!fault && !one.stage) add_statistics(one, response->add_model_stats());
        }
        return fault;
      });
  add<RepositoryIndexRequest, RepositoryIndexResponse>(
      [this](const Context& context, const auto& request, auto* response) {
        auto fault = authorize(context);
        if (fault) return fault;
        for (const auto& [name, router, stage] : models_.served()) {
          const bool ready = router->ready(name);
          if (stage || (request.ready() && !ready)) continue;
          auto* index = response->add_models();
          index->set_name(name);
          index->set_version(kOnlyVersion);
          index->set_state(ready ? "READY" : "UNAVAILABLE");
        }
        return fault;
      });
  for (const char* name : {"RepositoryModelLoad", "RepositoryModelUnload"})
    methods_.emplace(kService + std::string(name), refused(kNoRepositoryControl));
  for (const char* name : {"SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
                           "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"}) {
    methods_.emplace(kService + std::string(name), refused(kNoSharedMemory));
  }
  for (const char* name : {"TraceSetting", "LogSettings"})
    methods_.emplace(kService + std::string(name), refused(kNoSettings));

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
