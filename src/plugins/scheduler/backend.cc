// The Triton backend `arlo`: one logical model of any length, answered by the per-length models of the same server.
//
// Triton hands over requests of any length and shape; rows wait in the request scheduler that the gateway has, go as
// batches to the engines by the server's in-process API, and the answers are put together (docs/plugin.md).
//
// Ownership: Triton owns models and instances; a model's state is its Host, made in ModelInitialize and freed in
// ModelFinalize. No exception leaves an entry point.

#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "plugins/scheduler/config.h"
#include "plugins/scheduler/execution.h"
#include "plugins/scheduler/host.h"
#include "plugins/scheduler/metrics.h"
#include "plugins/triton_api.h"
#include "plugins/triton_errors.h"

namespace arlo::triton {
namespace {

// The state that all models of the server share.
struct Shared {
  explicit Shared(TRITONBACKEND_MemoryManager* manager) : memory(manager, CudaCopy()) {
    LogAndDelete(NewAllocator(&allocator));
  }
  ~Shared() { LogAndDelete(TRITONSERVER_ResponseAllocatorDelete(allocator)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  Memory memory;
  MetricFamilies families;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
};

// The manifest lies in the model's folder, or next to it in the repository.
TRITONSERVER_Error* ReadManifest(TRITONBACKEND_Model* model, std::string* text) {
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* folder = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelRepository(model, &type, &folder));
  for (const char* const name : {"/arlo.json", "/../arlo.json"}) {
    std::ifstream file(std::string(folder) + name, std::ios::binary);
    if (!file) continue;
    text->assign(std::istreambuf_iterator<char>(file), {});
    return nullptr;
  }
  return NewError(TRITONSERVER_ERROR_NOT_FOUND, "arlo: there is no arlo.json in " + std::string(folder) +
                                                    " nor in the folder above: copy the one that `arlo compile` wrote");
}

TRITONSERVER_Error* NewHost(TRITONBACKEND_Model* model, const Shared& shared, std::unique_ptr<Host>* host) {
  TRITONSERVER_Server* server = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelServer(model, &server));
  std::string config;
  ARLO_RETURN_IF_ERROR(ReadConfig(model, &config));
  std::string manifest;
  ARLO_RETURN_IF_ERROR(ReadManifest(model, &manifest));
  try {
    LogicalConfig logical = LogicalConfig::FromJson(config, manifest);
    if (!logical.measured) {
      Log(TRITONSERVER_LOG_WARN, logical.model.name +
                                     ": arlo.json has no latency of some engines, so batches are formed by a guess: "
                                     "run `arlo compile profile REPOSITORY --update` on this machine");
    }
    *host = std::make_unique<Host>(std::move(logical), server, shared.memory, shared.families, shared.allocator);
  } catch (const std::exception& problem) {
    return NewError(TRITONSERVER_ERROR_INVALID_ARG, std::string("arlo: ") + problem.what());
  }
  return nullptr;
}

TRITONSERVER_Error* SharedOf(TRITONBACKEND_Model* model, Shared** shared) {
  TRITONBACKEND_Backend* backend = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelBackend(model, &backend));
  void* state = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_BackendState(backend, &state));
  *shared = static_cast<Shared*>(state);
  return nullptr;
}

}  // namespace
}  // namespace arlo::triton

// The entry points that Triton looks up by name.
extern "C" {

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  ARLO_RETURN_IF_ERROR(arlo::triton::CheckApi("arlo"));
  TRITONBACKEND_MemoryManager* manager = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  auto shared = std::make_unique<arlo::triton::Shared>(manager);
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_BackendSetState(backend, shared.get()));
  static_cast<void>(shared.release());  // freed in Finalize
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  void* state = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_BackendState(backend, &state));
  delete static_cast<arlo::triton::Shared*>(state);
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  arlo::triton::Shared* shared = nullptr;
  ARLO_RETURN_IF_ERROR(arlo::triton::SharedOf(model, &shared));
  std::unique_ptr<arlo::triton::Host> host;
  ARLO_RETURN_IF_ERROR(arlo::triton::NewHost(model, *shared, &host));
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, host.get()));
  static_cast<void>(host.release());  // freed in ModelFinalize
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelState(model, &state));
  delete static_cast<arlo::triton::Host*>(state);
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                                   TRITONBACKEND_Request** requests, uint32_t count) {
  TRITONBACKEND_Model* model = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  void* state = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelState(model, &state));
  static_cast<arlo::triton::Host*>(state)->Receive(instance, requests, count);
  return nullptr;
}

}  // extern "C"
