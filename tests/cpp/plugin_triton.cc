#include "plugin_triton.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

using arlo::triton::test::Misuse;
using arlo::triton::test::outstanding;

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  std::string message;
};

struct TRITONSERVER_ResponseAllocator {
  TRITONSERVER_ResponseAllocatorAllocFn_t alloc;
  TRITONSERVER_ResponseAllocatorReleaseFn_t release;
};

struct TRITONSERVER_InferenceRequest {
  std::shared_ptr<arlo::triton::test::Server::Engine> engine;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  struct Input {
    const char* data;
    std::size_t bytes;
    bool on_device;
  };
  std::map<std::string, Input> inputs;
  std::vector<std::string> copies;  // of those that lie on the device

  const std::int64_t* Values(const char* name) {
    const Input& input = inputs.at(name);
    if (!input.on_device) return reinterpret_cast<const std::int64_t*>(input.data);
    copies.push_back(arlo::triton::test::OnDevice({input.data, input.bytes}));  // back again
    return reinterpret_cast<const std::int64_t*>(copies.back().data());
  }
  std::vector<std::string> outputs;
  TRITONSERVER_InferenceRequestReleaseFn_t release = nullptr;
  void* release_userp = nullptr;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  void* allocator_userp = nullptr;
  TRITONSERVER_InferenceResponseCompleteFn_t complete = nullptr;
  void* complete_userp = nullptr;
  std::atomic<bool> cancelled{false};
};

struct TRITONSERVER_InferenceResponse {
  struct Output {
    std::string name;
    TRITONSERVER_DataType datatype;
    std::vector<std::int64_t> shape;
    void* buffer;
    std::size_t bytes;
  };
  TRITONSERVER_ResponseAllocator* allocator;
  std::vector<Output> outputs;
  std::string error;
  TRITONSERVER_Error_Code code = TRITONSERVER_ERROR_INTERNAL;
};

struct TRITONBACKEND_Output {
  arlo::triton::test::Tensor* tensor;
  bool on_device;
};

struct TRITONBACKEND_Response {
  TRITONBACKEND_Request* request;
  std::map<std::string, arlo::triton::test::Tensor> tensors;
  std::map<std::string, std::int64_t> parameters;
  std::deque<TRITONBACKEND_Output> outputs;
};

namespace arlo::triton::test {

std::atomic<std::int64_t> outstanding{0};

void Misuse(const char* what) {
  std::cerr << "misuse of Triton's C API: " << what << '\n' << std::flush;
  std::abort();
}

std::int64_t Outstanding() { return outstanding; }

std::string OnDevice(const std::string& bytes) {
  std::string other = bytes;
  CopyByDevice(other.data(), bytes.data(), bytes.size());
  return other;
}

bool CopyByDevice(void* to, const void* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    static_cast<char*>(to)[i] = static_cast<char>(static_cast<const char*>(from)[i] ^ 0x5a);
  }
  return true;
}

struct Server::Engine {
  std::string name;
  std::mutex mutex;
  std::condition_variable some;
  std::deque<TRITONSERVER_InferenceRequest*> queue;
  Behaviour behaviour;
  bool unloaded = false;
  std::atomic<bool> ready{true};
  std::thread thread;
  std::uint64_t count = 0;
  Server* server = nullptr;

  void Run() {
    for (;;) {
      TRITONSERVER_InferenceRequest* request = nullptr;
      Behaviour now;
      {
        std::unique_lock lock(mutex);
        some.wait(lock, [this] { return unloaded || !queue.empty(); });
        if (queue.empty()) return;
        request = queue.front();
        queue.pop_front();
        now = behaviour;
      }
      Execute(request, now);
    }
  }

  void Execute(TRITONSERVER_InferenceRequest* request, const Behaviour& now) {
    if (now.sleep_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(now.sleep_us));
    auto* response = new TRITONSERVER_InferenceResponse;
    ++outstanding;
    response->allocator = request->allocator;
    request->copies.reserve(2);
    const auto* ids = request->Values("input_ids");
    const auto* mask = request->Values("attention_mask");
    const std::int64_t total = request->rows * request->tokens;
    bool bad = now.broken || (now.fail_one_in > 0 && ++count % static_cast<std::uint64_t>(now.fail_one_in) == 0);
    for (std::int64_t i = 0; i < total && now.poison >= 0; ++i) bad = bad || ids[i] == now.poison;
    if (request->cancelled) {
      response->error = "cancelled";
      response->code = TRITONSERVER_ERROR_CANCELLED;
    } else if (bad) {
      response->error = "the engine does not feel well";
    } else {
      for (const std::string& output : request->outputs) {
        if (output == "label") {
          AnswerLabels(request, now, ids, mask, response);
          continue;
        }
        const bool hidden = output == "hidden";
        const std::size_t values = static_cast<std::size_t>(hidden ? total : request->rows);
        void* buffer = nullptr;
        void* userp = nullptr;
        TRITONSERVER_MemoryType memory = now.on_device ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU;
        std::int64_t memory_id = 0;
        request->allocator->alloc(request->allocator, output.c_str(), values * sizeof(float), memory, memory_id,
                                  request->allocator_userp, &buffer, &userp, &memory, &memory_id);
        if (memory == TRITONSERVER_MEMORY_GPU) Misuse("there is no room for outputs on the device");
        ++server->seen().outputs[memory];
        auto* out = static_cast<float*>(buffer);
        std::vector<std::int64_t> shape = {request->rows};
        if (hidden) shape.push_back(request->tokens);
        shape.push_back(1);
        for (std::int64_t row = 0; row < request->rows; ++row) {
          std::int64_t sum = 0;
          for (std::int64_t i = row * request->tokens; i < (row + 1) * request->tokens; ++i) {
            if (hidden) out[i] = static_cast<float>(ids[i]);
            sum += mask[i] == 1 ? ids[i] : 0;
          }
          if (!hidden) out[row] = static_cast<float>(sum);
        }
        response->outputs.push_back({output, TRITONSERVER_TYPE_FP32, shape, buffer, values * sizeof(float)});
      }
    }
    if (now.answers == 0) TRITONSERVER_InferenceResponseDelete(response);
    if (now.answers == 1) {
      request->complete(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, request->complete_userp);
    } else {
      if (now.answers != 0) request->complete(response, 0, request->complete_userp);
      for (int i = 1; i < now.answers; ++i) {
        auto* more = new TRITONSERVER_InferenceResponse;
        ++outstanding;
        more->allocator = request->allocator;
        request->complete(more, 0, request->complete_userp);
      }
      request->complete(nullptr, TRITONSERVER_RESPONSE_COMPLETE_FINAL, request->complete_userp);
    }
    request->release(request, TRITONSERVER_REQUEST_RELEASE_ALL, request->release_userp);
  }

  // [rows, 2] of BYTES: the sum of the ids as text, and so many stars as the row has tokens.
  static void AnswerLabels(TRITONSERVER_InferenceRequest* request, const Behaviour& now, const std::int64_t* ids,
                           const std::int64_t* mask, TRITONSERVER_InferenceResponse* response) {
    std::string raw;
    const auto add = [&raw](const std::string& element) {
      const auto size = static_cast<std::uint32_t>(element.size());
      raw.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(element);
    };
    for (std::int64_t row = 0; row < request->rows; ++row) {
      std::int64_t sum = 0;
      std::int64_t tokens = 0;
      for (std::int64_t i = row * request->tokens; i < (row + 1) * request->tokens; ++i) {
        sum += mask[i] == 1 ? ids[i] : 0;
        tokens += mask[i];
      }
      add(std::to_string(sum));
      add(std::string(static_cast<std::size_t>(tokens), '*'));
    }
    if (now.cut_labels) raw.pop_back();
    void* buffer = nullptr;
    void* userp = nullptr;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    std::int64_t memory_id = 0;
    request->allocator->alloc(request->allocator, "label", raw.size(), memory, memory_id, request->allocator_userp,
                              &buffer, &userp, &memory, &memory_id);
    std::memcpy(buffer, raw.data(), raw.size());
    response->outputs.push_back({"label", TRITONSERVER_TYPE_BYTES, {request->rows, 2}, buffer, raw.size()});
  }

  void End() {
    ready = false;
    {
      const std::lock_guard lock(mutex);
      unloaded = true;
    }
    some.notify_all();
    if (thread.joinable()) thread.join();
  }
};

Server::Server() = default;
Server::~Server() {
  for (auto& [name, engine] : engines_) engine->End();
}

void Server::Load(const std::string& model, Behaviour behaviour) {
  auto engine = std::make_shared<Engine>();
  engine->name = model;
  engine->server = this;
  engine->behaviour = behaviour;
  engine->thread = std::thread([raw = engine.get()] { raw->Run(); });
  std::shared_ptr<Engine> old;
  {
    const std::lock_guard lock(mutex_);
    old = std::exchange(engines_[model], engine);
  }
  if (old != nullptr) old->End();
}

void Server::Unload(const std::string& model) {
  std::shared_ptr<Engine> old;
  {
    const std::lock_guard lock(mutex_);
    const auto at = engines_.find(model);
    if (at == engines_.end()) return;
    old = at->second;
    engines_.erase(at);
  }
  old->End();
}

void Server::Stop() { stopping_ = true; }

void Server::Set(const std::string& model, Behaviour behaviour) {
  const auto engine = Find(model);
  if (engine == nullptr) return;
  const std::lock_guard lock(engine->mutex);
  engine->behaviour = behaviour;
}

std::shared_ptr<Server::Engine> Server::Find(const std::string& model) {
  const std::lock_guard lock(mutex_);
  const auto at = engines_.find(model);
  return at == engines_.end() ? nullptr : at->second;
}

}  // namespace arlo::triton::test

using arlo::triton::test::Server;

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
  ++outstanding;
  return new TRITONSERVER_Error{code, message};
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) {
  --outstanding;
  delete error;
}
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) { return error->message.c_str(); }
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) { return error->code; }
TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel severity, const char*, int, const char* message) {
  if (severity == TRITONSERVER_LOG_ERROR) Misuse(message);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorNew(TRITONSERVER_ResponseAllocator** allocator,
                                                      TRITONSERVER_ResponseAllocatorAllocFn_t alloc,
                                                      TRITONSERVER_ResponseAllocatorReleaseFn_t release,
                                                      TRITONSERVER_ResponseAllocatorStartFn_t) {
  *allocator = new TRITONSERVER_ResponseAllocator{alloc, release};
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator* allocator) {
  delete allocator;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server* server, const char* model, int64_t,
                                                    bool* ready) {
  auto* const of = reinterpret_cast<Server*>(server);
  if (of->stopping()) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "Server not ready");
  const auto engine = of->Find(model);
  if (engine == nullptr) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "no such model");
  *ready = engine->ready;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestNew(TRITONSERVER_InferenceRequest** request,
                                                     TRITONSERVER_Server* server, const char* model, int64_t) {
  auto engine = reinterpret_cast<Server*>(server)->Find(model);
  if (engine == nullptr) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "unknown model");
  ++outstanding;
  *request = new TRITONSERVER_InferenceRequest;
  (*request)->engine = std::move(engine);
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest* request) {
  --outstanding;
  delete request;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestPriorityUInt64(TRITONSERVER_InferenceRequest* request,
                                                                uint64_t* priority) {
  // As in Triton: a backend's request is the same object.
  *priority = reinterpret_cast<TRITONBACKEND_Request*>(request)->priority;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest* request) {
  request->cancelled = true;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddInput(TRITONSERVER_InferenceRequest* request, const char*,
                                                          TRITONSERVER_DataType datatype, const int64_t* shape,
                                                          uint64_t dims) {
  if (dims != 2 || datatype != TRITONSERVER_TYPE_INT64) Misuse("an input that the engine does not have");
  request->rows = shape[0];
  request->tokens = shape[1];
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputData(TRITONSERVER_InferenceRequest* request,
                                                                 const char* name, const void* base, size_t bytes,
                                                                 TRITONSERVER_MemoryType memory, int64_t) {
  if (bytes != static_cast<std::size_t>(request->rows * request->tokens) * 8) Misuse("an input of another size");
  request->inputs[name] = {static_cast<const char*>(base), bytes, memory == TRITONSERVER_MEMORY_GPU};
  ++request->engine->server->seen().inputs[memory];
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest* request,
                                                                    const char* name) {
  request->outputs.emplace_back(name);
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetReleaseCallback(TRITONSERVER_InferenceRequest* request,
                                                                    TRITONSERVER_InferenceRequestReleaseFn_t release,
                                                                    void* userp) {
  request->release = release;
  request->release_userp = userp;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator, void* allocator_userp,
    TRITONSERVER_InferenceResponseCompleteFn_t complete, void* userp) {
  request->allocator = allocator;
  request->allocator_userp = allocator_userp;
  request->complete = complete;
  request->complete_userp = userp;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request,
                                                  TRITONSERVER_InferenceTrace*) {
  auto* const of = reinterpret_cast<Server*>(server);
  if (of->stopping()) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "Server is stopping, scheduler ...");
  const auto engine = request->engine;
  {
    const std::lock_guard lock(engine->mutex);
    if (engine->unloaded) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the model is not ready");
    of->Count(static_cast<std::size_t>(request->rows));
    if (!engine->behaviour.inline_answers) {
      engine->queue.push_back(request);
      engine->some.notify_one();
      return nullptr;
    }
  }
  engine->Execute(request, {});
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceTraceSpawnChildTrace(TRITONSERVER_InferenceTrace*,
                                                               TRITONSERVER_InferenceTrace** child) {
  *child = nullptr;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse* response) {
  return response->error.empty() ? nullptr : TRITONSERVER_ErrorNew(response->code, response->error.c_str());
}
TRITONSERVER_Error* TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse* response) {
  for (const auto& output : response->outputs) {
    response->allocator->release(response->allocator, output.buffer, nullptr, output.bytes, TRITONSERVER_MEMORY_CPU, 0);
  }
  --outstanding;
  delete response;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse* response,
                                                              uint32_t* count) {
  *count = static_cast<std::uint32_t>(response->outputs.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutput(TRITONSERVER_InferenceResponse* response, uint32_t index,
                                                         const char** name, TRITONSERVER_DataType* datatype,
                                                         const int64_t** shape, uint64_t* dims, const void** base,
                                                         size_t* bytes, TRITONSERVER_MemoryType* memory,
                                                         int64_t* memory_id, void** userp) {
  const auto& output = response->outputs[index];
  *name = output.name.c_str();
  *datatype = output.datatype;
  *shape = output.shape.data();
  *dims = output.shape.size();
  *base = output.buffer;
  *bytes = output.bytes;
  *memory = TRITONSERVER_MEMORY_CPU;
  *memory_id = 0;
  *userp = nullptr;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_MemoryManagerAllocate(TRITONBACKEND_MemoryManager* manager, void** buffer,
                                                        TRITONSERVER_MemoryType type, int64_t, uint64_t bytes) {
  if (type != TRITONSERVER_MEMORY_CPU_PINNED) Misuse("memory of another kind");
  if (manager->left-- <= 0) {
    ++manager->left;
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no pinned memory is left");
  }
  ++manager->had;
  ++manager->kept;
  *buffer = new char[bytes];
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_MemoryManagerFree(TRITONBACKEND_MemoryManager* manager, void* buffer,
                                                    TRITONSERVER_MemoryType, int64_t) {
  ++manager->left;
  --manager->kept;
  delete[] static_cast<char*>(buffer);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* r,
                                                                bool, uint64_t start, uint64_t compute_start,
                                                                uint64_t compute_end, uint64_t end) {
  if (r->releases > 0) Misuse("statistics of a released request");
  if (start > compute_start || compute_start > compute_end || compute_end > end) Misuse("times out of order");
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance*, uint64_t, uint64_t,
                                                                     uint64_t, uint64_t, uint64_t) {
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* cancelled) {
  if (request->releases > 0) Misuse("a look at a released request");
  *cancelled = request->cancelled;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestTrace(TRITONBACKEND_Request*, TRITONSERVER_InferenceTrace** trace) {
  *trace = nullptr;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = request->bulk ? 1 : 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request*, uint32_t, const char** key,
                                                   TRITONSERVER_ParameterType* type, const void** value) {
  *key = "arlo_class";
  *type = TRITONSERVER_PARAMETER_STRING;
  *value = "bulk";
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request* request,
                                                                      uint64_t* timeout) {
  *timeout = request->timeout_us;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<std::uint32_t>(request->inputs.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, uint32_t index,
                                                      TRITONBACKEND_Input** input) {
  *input = &request->inputs[index];
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* datatype, const int64_t** shape,
                                                  uint32_t* dims, uint64_t* bytes, uint32_t* buffers) {
  *name = input->name;
  *datatype = input->datatype;
  *shape = input->shape.data();
  *dims = static_cast<std::uint32_t>(input->shape.size());
  *bytes = 0;
  for (const auto& buffer : input->buffers) *bytes += buffer.size();
  *buffers = static_cast<std::uint32_t>(input->buffers.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** buffer,
                                              uint64_t* bytes, TRITONSERVER_MemoryType* memory, int64_t* memory_id) {
  *buffer = input->buffers[index].data();
  *bytes = input->buffers[index].size();
  *memory = input->memory;
  *memory_id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<std::uint32_t>(request->outputs.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index, const char** name) {
  *name = request->outputs[index].c_str();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t) {
  if (request->answers != 1) Misuse("a request is released unanswered");
  if (request->releases++ > 0) Misuse("a request is released twice");
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  if (request->releases > 0) Misuse("a response to a released request");
  ++outstanding;
  *response = new TRITONBACKEND_Response{request, {}, {}, {}};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseSetIntParameter(TRITONBACKEND_Response* response, const char* name,
                                                          int64_t value) {
  response->parameters[name] = value;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output,
                                                 const char* name, TRITONSERVER_DataType, const int64_t* shape,
                                                 uint32_t dims) {
  auto& tensor = response->tensors[name];
  tensor.shape.assign(shape, shape + dims);
  response->outputs.push_back({&tensor, response->request->answer_on_device});
  *output = &response->outputs.back();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer, uint64_t bytes,
                                               TRITONSERVER_MemoryType* memory, int64_t*) {
  *memory = output->on_device ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU;
  output->tensor->bytes.resize(bytes);
  *buffer = output->tensor->bytes.data();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t, TRITONSERVER_Error* error) {
  TRITONBACKEND_Request& request = *response->request;
  if (request.answers > 0) Misuse("a request is answered twice");
  if (error != nullptr) {
    request.error = error->message;
  } else {
    request.answer = std::move(response->tensors);
    request.parameters = std::move(response->parameters);
  }
  ++request.answers;
  --outstanding;
  delete response;
  return nullptr;
}

// What only entry points and other backends call.
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model*, uint32_t, TRITONSERVER_Message**) { std::abort(); }
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message*, const char**, size_t*) { std::abort(); }
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message*) { std::abort(); }
TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t*, uint32_t*) { std::abort(); }

}  // extern "C"
