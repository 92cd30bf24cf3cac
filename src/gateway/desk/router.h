// Where requests meet instances. The router owns the lock; under it three parts do one job each: the desk keeps the
// rows, the fleet keeps the instances, the books count. The scheduler makes all decisions about both.
//
// Threads: every method may be called from any thread. The mutex is never held while a worker is called or a call is
// completed: such work is collected in an Effects object and done after the mutex is released.
#pragma once

#include <arlo/v1/admin.pb.h>
#include <arlo/v1/config.pb.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "dispatch/scheduler.h"
#include "gateway/desk/books.h"
#include "gateway/desk/call.h"
#include "gateway/desk/desk.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/health.h"
#include "gateway/fleet/upstream.h"

namespace arlo::gateway {

class Router final : private UpstreamListener,
                     private HealthListener,
                     private AuditListener,
                     private transport::Loop::Timer {
 public:
  explicit Router(const v1::GatewayConfig& config);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // `lane`: runs health checks, expiry and drain timeouts between start() and stop(); it must run until stop() returns.
  void start(Lane& lane);
  // Reports not ready from now on; requests under way and new ones are still served.
  void close() { closing_ = true; }
  // Requires that every call is over. Waits a moment for workers still busy with rows whose clients have been answered.
  void stop();

  // ---- data path ----
  // Returns a model now served, by its name; null: none.
  [[nodiscard]] std::shared_ptr<const ModelSpec> model(std::string_view name) const;
  // Takes a bound call; complete() follows exactly once, perhaps before this returns.
  void submit(Call& call);
  // The client has gone: the call ends now, wherever its rows are, and completes.
  void cancel(Call& call);
  // Books a request refused before it had rows; `model`: null when it named none of these, and it is counted with the
  // first.
  void count_refused(const ModelSpec* model, const Fault& fault);

  // ---- control ----
  // FAILED_PRECONDITION / INVALID_ARGUMENT as a fault.
  MaybeFault apply(const v1::Deployment& deployment, v1::ApplyReply* reply);
  // Calls `done(true)` once drained, `done(false)` after the timeout; at once if the instance is empty.
  MaybeFault drain(const std::string& instance, TimeNs timeout, std::function<void(bool)> done);
  [[nodiscard]] v1::Deployment deployment() const;
  // Fills the statistics of the named model; without a name, of the first, or the counts from before any model existed.
  void stats(std::string_view model, v1::Stats* out) const;
  void sample(std::string_view model, v1::GetSampleReply* out) const;
  [[nodiscard]] Histograms histograms(std::string_view model) const;
  // Whether the model is in the deployment and some active instance holds it.
  [[nodiscard]] bool ready(std::string_view model) const;

 private:
  void upstream_done(UpstreamCall& upstream, transport::Answer answer) override;
  void health_done(const std::shared_ptr<Instance>& instance, const MaybeFault& fault, bool ready) override;
  void audit_done(Audit& audit) override;
  [[nodiscard]] dispatch::VariantId variant_of(std::string_view model) const;
  void due() override;  // on the lane's thread
  // Runs act(now, effects) under the lock, and carries out the effects after it.
  template <class Act>
  void locked(Act act);
  void run(Effects& effects);  // outside the lock
  [[nodiscard]] bool idle() const { return desk_.at_workers() == 0 && open_checks_ == 0 && !desk_.own_open(); }

  const v1::GatewayConfig config_;
  Lane* lane_ = nullptr;
  const std::uint64_t started_at_ms_;
  const TimeNs started_ns_;

  mutable std::mutex mutex_;
  dispatch::Scheduler scheduler_;
  BooksByVariant books_;
  Fleet fleet_;
  Desk desk_;

  std::condition_variable idle_;
  std::atomic<bool> closing_{false};
  bool stopping_ = false;
  std::uint32_t open_checks_ = 0;
};

}  // namespace arlo::gateway
