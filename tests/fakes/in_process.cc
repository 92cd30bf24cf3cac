// Triton's own server library in this process, and a closed-loop load on its models by Triton's C API: what a program
// does that embeds the server. The models are those of emulated engines: each answer is checked, row by row.
//
// A module that whoever has loaded libtritonserver.so loads after it (in_process.py), and calls with
// REPOSITORY BACKENDS PHASE... Phases run one after the other, each as
// MODEL:CLIENTS:REQUESTS:WIDTH:LENGTH[+LENGTH...][,LENGTH...]: the clients' requests have in turn the rows given
// between commas, joined by + where there are several; WIDTH is of the tensors, 0: that of the longest row. For each
// phase a line of JSON: answered and wrong answers, errors by text, median latency, CPU of the whole process for each
// request; rows that the plugin has answered, and computed tokens as it says. Then one with the plugin's metrics.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/triton_api.h"

// What only a program calls that has the server in it.
extern "C" {

struct TRITONSERVER_ServerOptions;
struct TRITONSERVER_Metrics;
enum TRITONSERVER_ModelControlMode { TRITONSERVER_MODEL_CONTROL_NONE = 0 };
enum TRITONSERVER_MetricFormat { TRITONSERVER_METRIC_PROMETHEUS = 0 };

TRITONSERVER_Error* TRITONSERVER_ServerOptionsNew(TRITONSERVER_ServerOptions** options);
TRITONSERVER_Error* TRITONSERVER_ServerOptionsDelete(TRITONSERVER_ServerOptions* options);
TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelRepositoryPath(TRITONSERVER_ServerOptions* options,
                                                                     const char* path);
TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetBackendDirectory(TRITONSERVER_ServerOptions* options,
                                                                  const char* path);
TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelControlMode(TRITONSERVER_ServerOptions* options,
                                                                  TRITONSERVER_ModelControlMode mode);
TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStrictModelConfig(TRITONSERVER_ServerOptions* options, bool strict);
TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogInfo(TRITONSERVER_ServerOptions* options, bool log);
TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetGpuMetrics(TRITONSERVER_ServerOptions* options, bool metrics);
TRITONSERVER_Error* TRITONSERVER_ServerNew(TRITONSERVER_Server** server, TRITONSERVER_ServerOptions* options);
TRITONSERVER_Error* TRITONSERVER_ServerStop(TRITONSERVER_Server* server);
TRITONSERVER_Error* TRITONSERVER_ServerDelete(TRITONSERVER_Server* server);
TRITONSERVER_Error* TRITONSERVER_ServerMetrics(TRITONSERVER_Server* server, TRITONSERVER_Metrics** metrics);
TRITONSERVER_Error* TRITONSERVER_MetricsFormatted(TRITONSERVER_Metrics* metrics, TRITONSERVER_MetricFormat format,
                                                  const char** base, size_t* bytes);
TRITONSERVER_Error* TRITONSERVER_MetricsDelete(TRITONSERVER_Metrics* metrics);
TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameterCount(TRITONSERVER_InferenceResponse* response,
                                                                 uint32_t* count);
TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameter(TRITONSERVER_InferenceResponse* response, uint32_t index,
                                                            const char** name, TRITONSERVER_ParameterType* type,
                                                            const void** value);

}  // extern "C"

namespace {

using Clock = std::chrono::steady_clock;

// Ends the program where there is no going on.
void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  std::cerr << TRITONSERVER_ErrorMessage(error) << '\n';
  std::_Exit(1);
}

struct Phase {
  std::string model;
  std::size_t clients = 1;
  std::size_t requests = 0;
  std::size_t width = 0;
  std::vector<std::vector<std::size_t>> lengths;  // of the rows of each request

  explicit Phase(const std::string& text) {
    const auto fields = Split(text, ':');
    if (fields.size() != 5) {
      std::cerr << "a phase is MODEL:CLIENTS:REQUESTS:WIDTH:LENGTHS, not " << text << '\n';
      std::exit(2);
    }
    model = fields[0];
    clients = std::stoul(fields[1]);
    requests = std::stoul(fields[2]);
    width = std::stoul(fields[3]);
    for (const auto& request : Split(fields[4], ',')) {
      lengths.emplace_back();
      for (const auto& row : Split(request, '+')) lengths.back().push_back(std::stoul(row));
    }
  }

 private:
  static std::vector<std::string> Split(const std::string& text, char at) {
    std::vector<std::string> parts;
    for (std::size_t from = 0; from <= text.size();) {
      const std::size_t to = std::min(text.find(at, from), text.size());
      parts.push_back(text.substr(from, to - from));
      from = to + 1;
    }
    return parts;
  }
};

struct Figures {
  std::uint64_t answered = 0;
  std::uint64_t wrong = 0;
  std::int64_t computed_tokens = 0;
  std::uint64_t plugin_rows = 0;  // of answers that say how they came to be, as the plugin's do
  std::map<std::string, std::uint64_t> errors;
  std::vector<double> latency_us;
};

// One client: a request, its answer, the next request.
class Client {
 public:
  Client(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const Phase& phase)
      : server_(server), allocator_(allocator), phase_(phase) {}

  void Run(std::atomic<std::size_t>& next) {
    for (std::size_t number = next++; number < phase_.requests; number = next++) {
      const auto& lengths = phase_.lengths[number % phase_.lengths.size()];
      const auto rows = lengths.size();
      const auto width = std::max(phase_.width, *std::max_element(lengths.begin(), lengths.end()));
      ids_.assign(rows * width, 0);
      mask_.assign(rows * width, 0);
      sums_.assign(rows, 0);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t t = 0; t < lengths[r]; ++t) {
          const auto id = static_cast<std::int64_t>((number + r * 7 + t) % 1000);
          ids_[r * width + t] = id;
          mask_[r * width + t] = 1;
          sums_[r] += static_cast<float>(id);
        }
      }
      const auto sent = Clock::now();
      Send(rows, width);
      open_.wait(true);
      figures.latency_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - sent).count());
    }
  }

  Figures figures;

 private:
  void Send(std::size_t rows, std::size_t width) {
    TRITONSERVER_InferenceRequest* request = nullptr;
    Check(TRITONSERVER_InferenceRequestNew(&request, server_, phase_.model.c_str(), -1));
    const std::int64_t shape[] = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width)};
    for (const auto& [name, values] : {std::pair{"input_ids", &ids_}, std::pair{"attention_mask", &mask_}}) {
      Check(TRITONSERVER_InferenceRequestAddInput(request, name, TRITONSERVER_TYPE_INT64, shape, 2));
      Check(TRITONSERVER_InferenceRequestAppendInputData(request, name, values->data(), values->size() * 8,
                                                         TRITONSERVER_MEMORY_CPU, 0));
    }
    Check(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "embedding"));
    Check(TRITONSERVER_InferenceRequestSetReleaseCallback(request, OnRelease, nullptr));
    Check(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator_, nullptr, OnResponse, this));
    open_ = true;
    if (TRITONSERVER_Error* error = TRITONSERVER_ServerInferAsync(server_, request, nullptr)) {
      ++figures.errors[TRITONSERVER_ErrorMessage(error)];
      TRITONSERVER_ErrorDelete(error);
      Check(TRITONSERVER_InferenceRequestDelete(request));
      open_ = false;
    }
  }

  static void OnRelease(TRITONSERVER_InferenceRequest* request, std::uint32_t /*flags*/, void* /*userp*/) {
    Check(TRITONSERVER_InferenceRequestDelete(request));
  }

  static void OnResponse(TRITONSERVER_InferenceResponse* response, std::uint32_t flags, void* userp) {
    auto& client = *static_cast<Client*>(userp);
    if (response != nullptr) {
      client.Read(response);
      Check(TRITONSERVER_InferenceResponseDelete(response));
    }
    if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) == 0) return;
    client.open_ = false;
    client.open_.notify_one();
  }

  void Read(TRITONSERVER_InferenceResponse* response) {
    if (TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response)) {
      ++figures.errors[TRITONSERVER_ErrorMessage(error)];
      TRITONSERVER_ErrorDelete(error);
      return;
    }
    ++figures.answered;
    const char* name = nullptr;
    TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
    const std::int64_t* shape = nullptr;
    std::uint64_t dims = 0;
    const void* base = nullptr;
    size_t bytes = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    std::int64_t memory_id = 0;
    void* of_buffer = nullptr;
    Check(TRITONSERVER_InferenceResponseOutput(response, 0, &name, &datatype, &shape, &dims, &base, &bytes, &memory,
                                               &memory_id, &of_buffer));
    bool good = std::strcmp(name, "embedding") == 0 && datatype == TRITONSERVER_TYPE_FP32 && dims == 2 &&
                shape[0] == static_cast<std::int64_t>(sums_.size());
    for (std::size_t r = 0; good && r < sums_.size(); ++r) {
      const auto* const row = static_cast<const float*>(base) + r * static_cast<std::size_t>(shape[1]);
      good = row[0] == sums_[r];
    }
    figures.wrong += good ? 0 : 1;
    std::uint32_t count = 0;
    Check(TRITONSERVER_InferenceResponseParameterCount(response, &count));
    for (std::uint32_t i = 0; i < count; ++i) {
      TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
      const void* value = nullptr;
      Check(TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value));
      if (std::strcmp(name, "computed_tokens") != 0) continue;
      figures.computed_tokens += *static_cast<const std::int64_t*>(value);
      figures.plugin_rows += sums_.size();
    }
  }

  TRITONSERVER_Server* const server_;
  TRITONSERVER_ResponseAllocator* const allocator_;
  const Phase& phase_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> mask_;
  std::vector<float> sums_;  // what is to be answered
  std::atomic<bool> open_{false};
};

TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator* /*allocator*/, const char* /*name*/, size_t bytes,
                             TRITONSERVER_MemoryType /*wanted*/, std::int64_t /*wanted_id*/, void* /*userp*/,
                             void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* memory,
                             std::int64_t* memory_id) {
  *buffer = std::malloc(std::max<size_t>(bytes, 1));
  *buffer_userp = nullptr;
  *memory = TRITONSERVER_MEMORY_CPU;
  *memory_id = 0;
  return nullptr;
}

TRITONSERVER_Error* Release(TRITONSERVER_ResponseAllocator* /*allocator*/, void* buffer, void* /*buffer_userp*/,
                            size_t /*bytes*/, TRITONSERVER_MemoryType /*memory*/, std::int64_t /*memory_id*/) {
  std::free(buffer);
  return nullptr;
}

double CpuUs() {
  timespec at{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
  return static_cast<double>(at.tv_sec) * 1e6 + static_cast<double>(at.tv_nsec) / 1e3;
}

Figures Run(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const Phase& phase) {
  std::vector<std::unique_ptr<Client>> clients;
  std::atomic<std::size_t> next{0};
  const double before_us = CpuUs();
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < phase.clients; ++i) {
      clients.push_back(std::make_unique<Client>(server, allocator, phase));
      threads.emplace_back([client = clients.back().get(), &next] { client->Run(next); });
    }
  }
  const double cpu_us = (CpuUs() - before_us) / static_cast<double>(phase.requests);
  Figures all;
  for (const auto& client : clients) {
    all.answered += client->figures.answered;
    all.wrong += client->figures.wrong;
    all.computed_tokens += client->figures.computed_tokens;
    all.plugin_rows += client->figures.plugin_rows;
    for (const auto& [error, count] : client->figures.errors) all.errors[error] += count;
    all.latency_us.insert(all.latency_us.end(), client->figures.latency_us.begin(), client->figures.latency_us.end());
  }
  const auto middle = all.latency_us.begin() + static_cast<std::ptrdiff_t>(all.latency_us.size() / 2);
  std::nth_element(all.latency_us.begin(), middle, all.latency_us.end());
  const nlohmann::json said = {{"model", phase.model},    {"answered", all.answered},
                               {"wrong", all.wrong},      {"errors", all.errors},
                               {"p50_us", *middle},       {"cpu_us", cpu_us},
                               {"rows", all.plugin_rows}, {"computed_tokens", all.computed_tokens}};
  std::cout << said.dump() << '\n' << std::flush;
  return all;
}

std::map<std::string, double> ReadPluginMetrics(TRITONSERVER_Server* server) {
  TRITONSERVER_Metrics* metrics = nullptr;
  Check(TRITONSERVER_ServerMetrics(server, &metrics));
  const char* base = nullptr;
  size_t bytes = 0;
  Check(TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &bytes));
  std::map<std::string, double> found;
  std::istringstream text(std::string(base, bytes));
  for (std::string line; std::getline(text, line);) {
    const std::size_t space = line.rfind(' ');
    if (line.starts_with("arlo_plugin_")) found[line.substr(0, space)] = std::stod(line.substr(space));
  }
  Check(TRITONSERVER_MetricsDelete(metrics));
  return found;
}

// The plugin's series, once they count the rows that it has answered: they are published five times a second.
std::map<std::string, double> PluginMetrics(TRITONSERVER_Server* server, std::uint64_t rows) {
  for (;;) {
    auto metrics = ReadPluginMetrics(server);
    double counted = 0;
    for (const auto& [name, value] : metrics)
      counted += name.starts_with("arlo_plugin_row_wait_seconds_count") ? value : 0;  // the last of them
    if (counted >= static_cast<double>(rows)) return metrics;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

// As main(). The server's library must be loaded, its functions for all to see: the backends take them from there, too.
extern "C" __attribute__((visibility("default"))) int arlo_in_process(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: REPOSITORY BACKENDS PHASE...\n";
    return 2;
  }
  TRITONSERVER_ServerOptions* options = nullptr;
  Check(TRITONSERVER_ServerOptionsNew(&options));
  Check(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, argv[0]));
  Check(TRITONSERVER_ServerOptionsSetBackendDirectory(options, argv[1]));
  Check(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_NONE));
  Check(TRITONSERVER_ServerOptionsSetStrictModelConfig(options, true));
  Check(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
  Check(TRITONSERVER_ServerOptionsSetGpuMetrics(options, false));
  TRITONSERVER_Server* server = nullptr;
  Check(TRITONSERVER_ServerNew(&server, options));
  Check(TRITONSERVER_ServerOptionsDelete(options));
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  Check(TRITONSERVER_ResponseAllocatorNew(&allocator, Allocate, Release, nullptr));

  std::uint64_t rows = 0;
  for (int i = 2; i < argc; ++i) rows += Run(server, allocator, Phase(argv[i])).plugin_rows;
  std::cout << nlohmann::json{{"metrics", PluginMetrics(server, rows)}}.dump() << '\n' << std::flush;

  Check(TRITONSERVER_ServerStop(server));
  Check(TRITONSERVER_ServerDelete(server));
  Check(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return 0;
}
