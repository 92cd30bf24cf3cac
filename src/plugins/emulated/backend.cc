// A Triton backend that waits as long as its latency profile says instead of computing: a worker with it emulates a GPU
// behind a real server and a real network.
//
// Its answers can be checked. A token-level output is the token's id as a float, repeated over the last dimension; a
// pooled output is the sum of the ids whose mask is 1. With records a row's answer is a real model's recorded one. Only
// the requested outputs are made. A batch that Triton's dynamic batcher put together costs one timed wait.
//
// Ownership: Triton owns models and instances; their state is created in *Initialize and freed in *Finalize.
// Threads: Triton calls Execute of one instance from one thread at a time, so instance state needs no lock. Model state
// is constant after ModelInitialize; the emulated device is shared and locks for itself. No exception leaves an entry
// point.

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "plugins/emulated/config.h"
#include "plugins/emulated/device.h"
#include "plugins/triton_api.h"
#include "plugins/triton_errors.h"

namespace arlo::triton {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;

void SleepUntil(int64_t deadline_ns) {
  const timespec deadline{deadline_ns / kNsPerS, deadline_ns % kNsPerS};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

struct Instance {
  Instance(const EmulatedConfig& configuration, const std::string& name)
      : config(configuration), random(configuration.seed ^ std::hash<std::string>()(name)) {}

  const EmulatedConfig& config;
  std::mt19937_64 random;
};

// One integer tensor of a request, [rows, width]. Points into Triton's buffer; `gathered` holds a copy only where the
// tensor came in several buffers.
struct Tensor {
  const void* data = nullptr;
  bool is_int64 = true;
  int64_t rows = 0;
  int64_t width = 0;
  std::vector<char> gathered;

  int64_t At(int64_t index) const {
    if (is_int64) return static_cast<const int64_t*>(data)[index];
    return static_cast<const int32_t*>(data)[index];
  }
};

struct Work {
  TRITONBACKEND_Request* request = nullptr;
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* error = nullptr;
  Tensor ids;
  Tensor mask;
};

TRITONSERVER_Error* ReadTensor(TRITONBACKEND_Input* input, Tensor* tensor) {
  const char* name = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint32_t dims = 0;
  uint64_t bytes = 0;
  uint32_t buffers = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &bytes, &buffers));
  if (dims != 2 || (datatype != TRITONSERVER_TYPE_INT64 && datatype != TRITONSERVER_TYPE_INT32)) {
    return NewError(TRITONSERVER_ERROR_INVALID_ARG,
                    std::string(name) + " must be INT64 or INT32 of shape [rows, tokens]");
  }
  tensor->is_int64 = datatype == TRITONSERVER_TYPE_INT64;
  tensor->rows = shape[0];
  tensor->width = shape[1];
  const auto expected = static_cast<uint64_t>(shape[0] * shape[1]) * (tensor->is_int64 ? 8 : 4);
  if (bytes != expected) {
    return NewError(TRITONSERVER_ERROR_INVALID_ARG, std::string(name) + " has " + std::to_string(bytes) +
                                                        " bytes, its shape needs " + std::to_string(expected));
  }
  if (buffers > 1) tensor->gathered.reserve(bytes);
  for (uint32_t i = 0; i < buffers; ++i) {
    const void* part = nullptr;
    uint64_t part_bytes = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, i, &part, &part_bytes, &memory, &memory_id));
    if (memory != TRITONSERVER_MEMORY_CPU && memory != TRITONSERVER_MEMORY_CPU_PINNED) {
      return NewError(TRITONSERVER_ERROR_UNSUPPORTED, std::string(name) + " is not in CPU memory");
    }
    tensor->data = part;
    if (buffers > 1) {
      const char* begin = static_cast<const char*>(part);
      tensor->gathered.insert(tensor->gathered.end(), begin, begin + part_bytes);
      tensor->data = tensor->gathered.data();
    }
  }
  return nullptr;
}

TRITONSERVER_Error* ReadRequest(const EmulatedConfig& config, Work* work) {
  uint32_t inputs = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestInputCount(work->request, &inputs));
  bool has_ids = false;
  for (uint32_t i = 0; i < inputs; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(work->request, i, &input));
    const char* name = nullptr;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, &name, nullptr, nullptr, nullptr, nullptr, nullptr));
    if (name == config.ids) {
      has_ids = true;
      ARLO_RETURN_IF_ERROR(ReadTensor(input, &work->ids));
    } else if (name == config.mask) {
      ARLO_RETURN_IF_ERROR(ReadTensor(input, &work->mask));
    }
  }
  if (!has_ids) return NewError(TRITONSERVER_ERROR_INVALID_ARG, "input " + config.ids + " is missing");
  if (work->mask.data != nullptr && (work->mask.rows != work->ids.rows || work->mask.width != work->ids.width)) {
    return NewError(TRITONSERVER_ERROR_INVALID_ARG, config.mask + " has not the shape of " + config.ids);
  }
  return nullptr;
}

void FillTokenLevel(const Tensor& ids, int64_t dim, float* out) {
  for (int64_t i = 0; i < ids.rows * ids.width; ++i) out = std::fill_n(out, dim, static_cast<float>(ids.At(i)));
}

void FillPooled(const Tensor& ids, const Tensor& mask, int64_t dim, float* out) {
  for (int64_t row = 0; row < ids.rows; ++row) {
    int64_t sum = 0;
    for (int64_t i = row * ids.width; i < (row + 1) * ids.width; ++i) {
      if (mask.data == nullptr || mask.At(i) == 1) sum += ids.At(i);
    }
    out = std::fill_n(out, dim, static_cast<float>(sum));
  }
}

// False: a row names a record that is not there.
bool FillRecorded(const Records& records, const Tensor& ids, bool importance, float* out) {
  for (int64_t row = 0; row < ids.rows; ++row) {
    const int64_t record = ids.width > 1 ? ids.At(row * ids.width + 1) : -1;
    if (record < 0 || record >= records.count()) return false;
    if (importance) {
      for (int64_t token = 0; token < ids.width; ++token) *out++ = records.importance(record, token);
    } else {
      out = std::copy_n(records.logits(record), records.labels(), out);
    }
  }
  return true;
}

TRITONSERVER_Error* WriteOutputs(const EmulatedConfig& config, Work* work) {
  uint32_t count = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestOutputCount(work->request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestOutputName(work->request, i, &name));
    const auto spec = std::find_if(config.outputs.begin(), config.outputs.end(),
                                   [name](const OutputSpec& output) { return output.name == name; });
    if (spec == config.outputs.end()) {
      return NewError(TRITONSERVER_ERROR_INVALID_ARG, std::string("no output is called ") + name);
    }
    const Tensor& ids = work->ids;
    const int64_t token_shape[] = {ids.rows, ids.width, spec->dim};
    const int64_t pooled_shape[] = {ids.rows, spec->dim};
    const bool recorded = config.records.count() > 0;
    const bool importance = recorded && spec->token_level;
    const int64_t importance_shape[] = {ids.rows, ids.width};
    const int64_t* const shape = importance ? importance_shape : spec->token_level ? token_shape : pooled_shape;
    TRITONBACKEND_Output* output = nullptr;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(work->response, &output, name, TRITONSERVER_TYPE_FP32, shape,
                                                      spec->token_level && !importance ? 3 : 2));
    const int64_t values =
        importance ? ids.rows * ids.width : ids.rows * spec->dim * (spec->token_level ? ids.width : 1);
    void* buffer = nullptr;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, static_cast<uint64_t>(values) * sizeof(float),
                                                    &memory, &memory_id));
    if (memory != TRITONSERVER_MEMORY_CPU && memory != TRITONSERVER_MEMORY_CPU_PINNED) {
      return NewError(TRITONSERVER_ERROR_UNSUPPORTED, std::string("output ") + name + " is not in CPU memory");
    }
    if (recorded) {
      if (!FillRecorded(config.records, ids, importance, static_cast<float*>(buffer))) {
        return NewError(TRITONSERVER_ERROR_INVALID_ARG, "the second token of a row names no record");
      }
    } else if (spec->token_level) {
      FillTokenLevel(ids, spec->dim, static_cast<float*>(buffer));
    } else {
      FillPooled(ids, work->mask, spec->dim, static_cast<float*>(buffer));
    }
  }
  return nullptr;
}

int64_t BatchLatencyNs(Instance* instance, int64_t width, int64_t rows, double slowdown) {
  const EmulatedConfig& config = instance->config;
  const int64_t charged = config.dynamic ? width : config.latency.max_length();
  const auto latency_ns = static_cast<int64_t>(static_cast<double>(config.latency.at(charged, rows)) * slowdown);
  if (config.jitter == 0) return latency_ns;
  std::uniform_real_distribution<double> factor(1 - config.jitter, 1 + config.jitter);
  return static_cast<int64_t>(static_cast<double>(latency_ns) * factor(instance->random));
}

void Answer(Work* work) {
  if (work->response != nullptr) {
    LogAndDelete(TRITONBACKEND_ResponseSend(work->response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, work->error));
    if (work->error != nullptr) TRITONSERVER_ErrorDelete(work->error);
  } else {
    LogAndDelete(work->error);
  }
}

// Requests that can't be served are answered with their own error and cost no time; the rest share one timed wait.
void Execute(TRITONBACKEND_ModelInstance* handle, Instance* instance, TRITONBACKEND_Request** requests,
             uint32_t count) {
  const int64_t exec_start_ns = now_ns();
  std::vector<Work> batch(count);
  const double slowdown = TheDevice().Slowdown(exec_start_ns);
  int64_t rows = 0;
  int64_t width = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Work& work = batch[i];
    work.request = requests[i];
    work.error = TRITONBACKEND_ResponseNew(&work.response, work.request);
    if (work.error == nullptr) work.error = ReadRequest(instance->config, &work);
    if (work.error == nullptr && slowdown < 0) work.error = NewError(TRITONSERVER_ERROR_INTERNAL, "device error");
    if (work.error != nullptr) continue;
    rows += work.ids.rows;
    width = std::max(width, work.ids.width);
  }
  std::unique_lock<std::mutex> computing(TheDevice().Computing());
  const int64_t compute_start_ns = now_ns();
  for (Work& work : batch) {
    if (work.error == nullptr) work.error = WriteOutputs(instance->config, &work);
  }
  if (rows > 0) {
    const int64_t latency_ns = BatchLatencyNs(instance, width, rows, slowdown);
    if (latency_ns > 0) SleepUntil(compute_start_ns + latency_ns);
  }
  computing.unlock();
  const int64_t compute_end_ns = now_ns();
  std::vector<bool> succeeded(count);
  for (uint32_t i = 0; i < count; ++i) {
    succeeded[i] = batch[i].error == nullptr;
    Answer(&batch[i]);
  }
  const int64_t exec_end_ns = now_ns();
  for (uint32_t i = 0; i < count; ++i) {
    LogAndDelete(TRITONBACKEND_ModelInstanceReportStatistics(handle, batch[i].request, succeeded[i], exec_start_ns,
                                                             compute_start_ns, compute_end_ns, exec_end_ns));
    LogAndDelete(TRITONBACKEND_RequestRelease(batch[i].request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  if (rows > 0) {
    LogAndDelete(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle, static_cast<uint64_t>(rows), exec_start_ns,
                                                                  compute_start_ns, compute_end_ns, exec_end_ns));
  }
}

TRITONSERVER_Error* LoadConfig(TRITONBACKEND_Model* model, EmulatedConfig* config) {
  std::string text;
  ARLO_RETURN_IF_ERROR(ReadConfig(model, &text));
  try {
    *config = EmulatedConfig::FromJson(text);
  } catch (const std::exception& problem) {
    return NewError(TRITONSERVER_ERROR_INVALID_ARG, std::string("emulated engine: ") + problem.what());
  }
  return nullptr;
}

}  // namespace
}  // namespace arlo::triton

// The entry points that Triton looks up by name.
extern "C" {

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* /*backend*/) {
  return arlo::triton::CheckApi("emulated engine");
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  auto config = std::make_unique<arlo::triton::EmulatedConfig>();
  ARLO_RETURN_IF_ERROR(arlo::triton::LoadConfig(model, config.get()));
  if (config->load_delay_ms > 0) {
    arlo::triton::SleepUntil(arlo::now_ns() + config->load_delay_ms * 1'000'000);
  }
  if (!config->fail_load.empty()) return arlo::triton::NewError(TRITONSERVER_ERROR_INTERNAL, config->fail_load);
  const std::string refusal = arlo::triton::TheDevice().Take(config->memory_mb);
  if (!refusal.empty()) return arlo::triton::NewError(TRITONSERVER_ERROR_INTERNAL, refusal);
  if (TRITONSERVER_Error* error = TRITONBACKEND_ModelSetState(model, config.get()); error != nullptr) {
    arlo::triton::TheDevice().GiveBack(config->memory_mb);
    return error;
  }
  static_cast<void>(config.release());  // freed in ModelFinalize
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelState(model, &state));
  const auto* config = static_cast<arlo::triton::EmulatedConfig*>(state);
  if (config != nullptr && config->unload_delay_ms > 0) {
    arlo::triton::SleepUntil(arlo::now_ns() + config->unload_delay_ms * 1'000'000);
  }
  if (config != nullptr) arlo::triton::TheDevice().GiveBack(config->memory_mb);
  delete config;
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  void* config = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelState(model, &config));
  const char* name = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceName(instance, &name));
  auto state =
      std::make_unique<arlo::triton::Instance>(*static_cast<const arlo::triton::EmulatedConfig*>(config), name);
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
  static_cast<void>(state.release());  // freed in ModelInstanceFinalize
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  void* state = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &state));
  delete static_cast<arlo::triton::Instance*>(state);
  return nullptr;
}

ARLO_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                                   TRITONBACKEND_Request** requests, uint32_t count) {
  void* state = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &state));
  // The default timer slack of 50 us would make every wait that much too long.
  static thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1UL);
  static_cast<void>(slack_set);
  arlo::triton::Execute(instance, static_cast<arlo::triton::Instance*>(state), requests, count);
  return nullptr;
}

}  // extern "C"
