// A logical model in its server: the lock, the threads, and the execution of the desk's decisions.
//
// Threads. Triton's thread of the model's instance brings requests; the engines' threads bring answers and start the
// next batches; the host's own thread checks deadlines, clients that gave up, and which engines are loaded. All
// decisions are made under one lock; Triton is called without it, except for cancellations, which only set a flag.
//
// Inline answers. An engine may answer before ServerInferAsync has returned (from a response cache, say). Its
// callback's decisions are then carried out by the call that is under way on that thread, not inside of the callback.
//
// Life. Every request holds its model, so the host ends after the last one; its destructor waits for callbacks that are
// on their way out.
#ifndef ARLO_PLUGINS_SCHEDULER_HOST_H_
#define ARLO_PLUGINS_SCHEDULER_HOST_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "plugins/scheduler/call.h"
#include "plugins/scheduler/config.h"
#include "plugins/scheduler/desk.h"
#include "plugins/scheduler/metrics.h"
#include "plugins/triton_api.h"

namespace arlo::triton {

class Host {
 public:
  Host(LogicalConfig config, TRITONSERVER_Server* server, const Memory& memory, const MetricFamilies& families,
       TRITONSERVER_ResponseAllocator* allocator);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Takes the requests over; each is answered once and released.
  void Receive(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, std::uint32_t count);

 private:
  // While there is one, the host is not destroyed.
  class Inside {
   public:
    explicit Inside(Host& host) : host_(&host) { host_->inside_.fetch_add(1, std::memory_order_relaxed); }
    ~Inside() {
      if (host_ != nullptr) host_->inside_.fetch_sub(1, std::memory_order_release);
    }
    Inside(Inside&& other) noexcept : host_(std::exchange(other.host_, nullptr)) {}
    Inside& operator=(Inside&&) = delete;
    [[nodiscard]] Host& host() const { return *host_; }

   private:
    Host* host_;
  };
  struct Work;

  static void OnResponse(TRITONSERVER_InferenceResponse* response, std::uint32_t flags, void* batch);
  static void OnRelease(TRITONSERVER_InferenceRequest* request, std::uint32_t flags, void* batch);

  // Cancels batches that no client waits for; the lock is held.
  static void Cancel(Effects& effects);
  // Carries out the decisions; the lock is not held.
  void Run(Effects effects);
  void Carry(Effects& effects);
  void Start(Batch& batch);
  TRITONSERVER_Error* Send(Batch& batch);
  void Finish(Batch& batch, Reply reply);
  void LetGo(Batch& batch);
  static void LetGo(Call& call);
  void Look();
  std::vector<bool> Loaded(bool* stopping);

  const LogicalConfig config_;
  TRITONSERVER_Server* const server_;
  const Memory& memory_;
  TRITONSERVER_ResponseAllocator* const allocator_;
  ModelMetrics metrics_;
  std::atomic<std::int64_t> inside_{0};

  std::mutex mutex_;
  Desk desk_;
  bool ending_ = false;
  std::condition_variable end_;
  std::thread looker_;
};

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_HOST_H_
