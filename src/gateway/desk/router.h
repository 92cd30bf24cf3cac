// Where requests meet instances: the scheduler behind one lock, the calls to workers, retries, ejection and health.
//
// Threads: every method may be called from any thread. One mutex covers the scheduler, the instances and the rows; it
// is never held while gRPC is called or a call is completed. What has to be done after the lock is released is
// collected in an Effects object.
#pragma once

#include <arlo/v1/admin.pb.h>
#include <arlo/v1/config.pb.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dispatch/scheduler.h"
#include "gateway/desk/call.h"
#include "base/fault.h"
#include "gateway/fleet/instance.h"
#include "gateway/desk/latency_stats.h"
#include "rewrite/model.h"

namespace arlo::gateway {

enum class Outcome : std::uint8_t { kOnTime, kLate, kRejected, kExpired, kCancelled, kFailed };
inline constexpr std::size_t kOutcomes = 6;

class Router {
 public:
  explicit Router(const v1::GatewayConfig& config);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Health checks, expiry and drain time-outs run on a thread of their own between start() and stop().
  // `queue`: where the answers to health checks go; polled until stop() has returned.
  void start(grpc::CompletionQueue& queue);
  // Not ready from now on, for whoever sends requests here; those under way and those that still come are served.
  void close() { closing_ = true; }
  void stop();

  // ---- data path ----
  // The model now served; null before the first deployment.
  [[nodiscard]] std::shared_ptr<const ModelSpec> model() const;
  // Takes a bound call; complete() follows exactly once, perhaps before this returns.
  void submit(Call& call);
  // The client has gone: rows that wait end now, rows that run are cancelled upstream. The call still completes.
  void cancel(Call& call);
  // A request refused before it had rows, for the books.
  void count_refused(const Fault& fault);

  // ---- control ----
  // FAILED_PRECONDITION / INVALID_ARGUMENT as a fault.
  MaybeFault apply(const v1::Deployment& deployment, v1::ApplyReply* reply);
  // `done(true)` when drained, `done(false)` after timeout; at once when the instance has nothing to do.
  MaybeFault drain(const std::string& instance, TimeNs timeout, std::function<void(bool)> done);
  [[nodiscard]] v1::Deployment deployment() const;
  void stats(v1::Stats* out) const;
  // Ready to serve: a deployment is in force and some instance is active.
  [[nodiscard]] bool ready() const;

  struct Histograms {
    LatencyBuckets total, queue, execute;
  };
  [[nodiscard]] Histograms histograms() const;

 private:
  friend class UpstreamCall;
  friend class HealthCheck;
  struct Effects;
  struct LevelCount {
    std::int32_t max_length = 0;
    std::uint64_t ideal = 0, dispatched = 0, demoted = 0;
  };

  // data path, router.cc
  void upstream_done(UpstreamCall& upstream, const grpc::Status& status);
  void apply_actions(Effects& effects, TimeNs now);
  void end_row(Row& row, Fault fault, TimeNs now, Effects& effects);
  void begin_row(Row& row, const dispatch::Action& action, TimeNs now, Effects& effects);
  void account_end(const Row& row, TimeNs now);
  void expired_row(Row& row, TimeNs now, Effects& effects);
  Fault no_instance_fault(std::int32_t length) const;
  void run(Effects& effects);

  // instances, router_instances.cc
  void eject(const std::shared_ptr<Instance>& instance, const std::string& why, TimeNs now, Effects& effects);
  void join(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects);
  void retire(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects);
  void start_drain(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects);
  void check_drained(const std::shared_ptr<Instance>& instance, Effects& effects);
  void tick_loop();
  void tick_instances(TimeNs now, Effects& effects);
  void check_health(const std::shared_ptr<Instance>& instance);
  void health_done(const std::shared_ptr<Instance>& instance, const grpc::Status& status, bool ready);
  std::shared_ptr<Worker> worker_for(const std::string& endpoint);
  void relevel();

  const v1::GatewayConfig config_;
  grpc::CompletionQueue* queue_ = nullptr;
  const std::uint64_t started_at_ms_;
  const TimeNs started_ns_;

  mutable std::mutex mutex_;
  dispatch::Scheduler scheduler_;
  std::shared_ptr<const ModelSpec> model_;
  v1::Deployment deployment_;
  std::vector<std::shared_ptr<Instance>> instances_;  // of the deployment, and retired ones that still drain
  std::vector<std::shared_ptr<Instance>> by_slot_;    // scheduler's InstanceId -> instance
  std::unordered_map<std::string, dispatch::RuntimeId> runtime_ids_;  // by serialised runtime
  std::unordered_map<std::string, std::weak_ptr<Worker>> workers_;    // by endpoint

  // counters
  std::vector<LevelCount> levels_;
  std::vector<std::uint64_t> arrivals_by_length_;
  std::uint64_t outcomes_[kOutcomes] = {};
  std::uint64_t tokens_ = 0, computed_tokens_ = 0, retries_ = 0, ejections_ = 0;
  LatencyWindow window_total_, window_queue_, window_execute_;
  Histograms histograms_;

  std::condition_variable wake_;
  std::atomic<bool> closing_{false};
  bool stopping_ = false;
  std::uint32_t open_upstream_ = 0;  // upstream calls and health checks under way
  std::condition_variable idle_;
  std::thread ticker_;
};

}  // namespace arlo::gateway
