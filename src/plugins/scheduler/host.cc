#include "plugins/scheduler/host.h"

#include <chrono>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "plugins/scheduler/client.h"
#include "plugins/scheduler/execution.h"
#include "plugins/triton_errors.h"

namespace arlo::triton {
namespace {

constexpr auto kTick = std::chrono::milliseconds(10);  // how late an expiry or a cancellation may be
constexpr int kTicksOfLook = 10;                       // from one look at the engines to the next, while all are loaded
constexpr int kTicksOfMetrics = 20;

}  // namespace

struct Host::Work {
  Inside inside;
  Effects effects;
};

Host::Host(LogicalConfig config, TRITONSERVER_Server* server, const Memory& memory, const MetricFamilies& families,
           TRITONSERVER_ResponseAllocator* allocator)
    : config_(std::move(config)),
      server_(server),
      memory_(memory),
      allocator_(allocator),
      metrics_(families, config_),
      desk_(config_) {
  desk_.given_up = GivenUp;
  looker_ = std::thread([this] { Look(); });
}

Host::~Host() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  end_.notify_all();
  looker_.join();
  while (inside_.load(std::memory_order_acquire) > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void Host::Receive(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, std::uint32_t count) {
  const Inside inside(*this);
  const TimeNs now = now_ns();
  std::vector<std::unique_ptr<Call>> calls;
  for (std::uint32_t i = 0; i < count; ++i) {
    auto call = std::make_unique<Call>();
    call->request = requests[i];
    call->instance = instance;
    TRITONSERVER_Error* error = ReadCall(config_, memory_, now, call.get());
    if (error != nullptr) {
      SendAnswer(config_, memory_, *call, now, error);
      LetGo(*call.release());
    } else {
      calls.push_back(std::move(call));
    }
  }
  if (calls.empty()) return;
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    // From here on a call belongs to its holds: see LetGo().
    for (auto& call : calls) desk_.Submit(*call.release(), now, effects);
    Cancel(effects);
  }
  Run(std::move(effects));
}

void Host::Cancel(Effects& effects) {
  for (Batch* batch : effects.cancels) {
    if (batch->request != nullptr) LogAndDelete(TRITONSERVER_InferenceRequestCancel(batch->request));
  }
  effects.cancels.clear();
}

void Host::Run(Effects effects) {
  static thread_local std::deque<Work>* under_way = nullptr;
  if (under_way != nullptr) {
    under_way->push_back({Inside(*this), std::move(effects)});
    return;
  }
  std::deque<Work> works;
  under_way = &works;
  works.push_back({Inside(*this), std::move(effects)});
  while (!works.empty()) {
    Work work = std::move(works.front());
    works.pop_front();
    work.inside.host().Carry(work.effects);
  }
  under_way = nullptr;
}

// The engines' next batches first: nothing else keeps a device waiting.
void Host::Carry(Effects& effects) {
  for (Batch* batch : effects.starts) Start(*batch);
  for (const Effects::Note& note : effects.notes) {
    Log(note.warning ? TRITONSERVER_LOG_WARN : TRITONSERVER_LOG_INFO, config_.model.name + ": " + note.text);
  }
  for (Call* call : effects.answers) {
    SendAnswer(config_, memory_, *call, now_ns());
    LetGo(*call);
  }
}

// ---- batches ----

void Host::Start(Batch& batch) {
  batch.host = this;
  batch.memory = &memory_;
  TRITONSERVER_Error* const error = Send(batch);
  if (error == nullptr) {
    const std::lock_guard lock(mutex_);
    if (!batch.released) {
      batch.request = batch.sent;
      if (batch.cancelled) LogAndDelete(TRITONSERVER_InferenceRequestCancel(batch.request));
    }
  } else {
    const Reply reply = ReplyOf(error, true);
    batch.why = TRITONSERVER_ErrorMessage(error);
    TRITONSERVER_ErrorDelete(error);
    Finish(batch, reply);
    batch.open.store(1, std::memory_order_relaxed);  // no callback will come
  }
  LetGo(batch);
}

// On an error nothing has been sent.
TRITONSERVER_Error* Host::Send(Batch& batch) {
  TRITONSERVER_InferenceRequest* request = nullptr;
  TRITONSERVER_Error* error = MakeRequest(config_, server_, batch, &request);
  if (error == nullptr) error = TRITONSERVER_InferenceRequestSetReleaseCallback(request, OnRelease, &batch);
  if (error == nullptr) {
    error = TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator_, &batch, OnResponse, &batch);
  }
  TRITONSERVER_InferenceTrace* trace = nullptr;
  if (error == nullptr) {
    // A batch has one trace: below that of the first of its requests that is traced.
    TRITONSERVER_InferenceTrace* parent = nullptr;
    for (const Call* call : batch.calls) {
      if (TRITONSERVER_Error* without = TRITONBACKEND_RequestTrace(call->request, &parent)) {
        TRITONSERVER_ErrorDelete(without);  // a server that was built without tracing
        parent = nullptr;
      }
      if (parent != nullptr) break;
    }
    if (parent != nullptr) LogAndDelete(TRITONSERVER_InferenceTraceSpawnChildTrace(parent, &trace));
    batch.sent = request;
    error = TRITONSERVER_ServerInferAsync(server_, request, trace);
  }
  if (error != nullptr && request != nullptr) LogAndDelete(TRITONSERVER_InferenceRequestDelete(request));
  return error;
}

void Host::OnResponse(TRITONSERVER_InferenceResponse* response, std::uint32_t flags, void* userp) {
  Batch& batch = *static_cast<Batch*>(userp);
  Host& host = *batch.host;
  const Inside inside(host);
  if (response != nullptr) {
    batch.reply = ReadResponse(host.config_, response, batch);
    LogAndDelete(TRITONSERVER_InferenceResponseDelete(response));
  }
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) == 0) return;
  host.Finish(batch, batch.reply);
  host.LetGo(batch);
}

void Host::OnRelease(TRITONSERVER_InferenceRequest* request, std::uint32_t /*flags*/, void* userp) {
  Batch& batch = *static_cast<Batch*>(userp);
  Host& host = *batch.host;
  const Inside inside(host);
  {
    const std::lock_guard lock(host.mutex_);
    batch.released = true;
    batch.request = nullptr;
  }
  LogAndDelete(TRITONSERVER_InferenceRequestDelete(request));
  host.LetGo(batch);
}

void Host::Finish(Batch& batch, Reply reply) {
  const TimeNs now = now_ns();
  if (reply == Reply::kGood) {
    const auto start = static_cast<std::uint64_t>(batch.started_ns);
    const auto end = static_cast<std::uint64_t>(now);
    LogAndDelete(TRITONBACKEND_ModelInstanceReportBatchStatistics(batch.calls.front()->instance, batch.calls.size(),
                                                                  start, start, end, end));
  }
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    desk_.Answered(batch, reply, batch.why, now, effects);
    Cancel(effects);
  }
  Run(std::move(effects));
}

void Host::LetGo(Batch& batch) {
  if (batch.open.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  for (Call* call : batch.calls) LetGo(*call);
  delete &batch;
}

void Host::LetGo(Call& call) {
  if (call.holds.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  TRITONBACKEND_Request* const request = call.request;
  delete &call;
  LogAndDelete(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

// ---- time ----

std::vector<bool> Host::Loaded(bool* stopping) {
  std::vector<bool> loaded(config_.engines.size());
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    bool ready = false;
    const char* const name = config_.engines[i].info.name.c_str();
    if (TRITONSERVER_Error* error = TRITONSERVER_ServerModelIsReady(server_, name, -1, &ready)) {
      *stopping = *stopping || ReplyOf(error, true) == Reply::kStopping;
      TRITONSERVER_ErrorDelete(error);
    }
    loaded[i] = ready;
  }
  return loaded;
}

void Host::Look() {
  bool seen = false;  // some engine: the server is up
  bool all = false;
  for (int tick = 0;; ++tick) {
    std::vector<bool> loaded;
    bool stopping = false;
    if (!all || tick % kTicksOfLook == 0) loaded = Loaded(&stopping);
    bool some = false;
    if (!loaded.empty()) all = true;
    for (const bool each : loaded) {
      some = some || each;
      all = all && each;
    }
    seen = seen || some;
    Effects effects;
    std::vector<EngineCounts> counts;
    std::vector<EngineSamples> samples;
    std::vector<bool> usable(config_.engines.size());
    double queued = 0;
    {
      std::unique_lock lock(mutex_);
      const TimeNs now = now_ns();
      if (stopping && seen) {
        desk_.Stop(now, effects);  // its engines take nothing any more
      } else if (!loaded.empty()) {
        desk_.Loaded(loaded, now, effects);
      }
      desk_.Tick(now, effects);
      Cancel(effects);
      if (tick % kTicksOfMetrics == 0) {
        counts = desk_.counts();
        samples = desk_.TakeSamples();
        for (std::size_t i = 0; i < usable.size(); ++i) usable[i] = desk_.usable(i);
        queued = desk_.queued();
      }
    }
    Run(std::move(effects));
    if (!counts.empty()) metrics_.Publish(counts, samples, usable, queued);
    std::unique_lock lock(mutex_);
    if (end_.wait_for(lock, kTick, [this] { return ending_; })) return;
  }
}

}  // namespace arlo::triton
