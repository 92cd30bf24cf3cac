// The instances of the deployment: which are in service, and when they are checked, ejected and reinstated.
//
// Not synchronised: the router's lock covers it. Work for outside the lock goes into the given Effects.
//
// Three things take an instance out of service. Its worker is gone: the connection breaks, or health checks fail. It is
// silent: it has rows and answers none. It is at fault: row after row, it answers with errors rows that others then
// answer well. A row that fails on two sound instances is itself at fault, and no instance is blamed for it.
#pragma once

#include <arlo/v1/admin.pb.h>
#include <arlo/v1/config.pb.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "dispatch/scheduler.h"
#include "gateway/desk/effects.h"
#include "gateway/fleet/instance.h"
#include "rewrite/model.h"

namespace arlo::gateway {

class Fleet {
 public:
  // Turns the scheduler's actions into effects. Called after each step that makes actions, because they name slots.
  using Settle = std::function<void(Effects& effects, TimeNs now)>;
  using Others = std::vector<std::shared_ptr<Instance>>;

  Fleet(const v1::GatewayConfig& config, dispatch::Scheduler& scheduler, Settle settle);

  // ---- deployments ----
  // First step: returns FAILED_PRECONDITION or INVALID_ARGUMENT, or registers its runtimes with the scheduler.
  // *changed: it differs from the deployment in force.
  MaybeFault admit(const v1::Deployment& deployment, bool* changed);
  // Second step: puts it in force.
  void install(const v1::Deployment& deployment, v1::ApplyReply* reply, TimeNs now, Effects& effects);
  MaybeFault drain(const std::string& id, TimeNs timeout, std::function<void(bool)> done, TimeNs now, Effects& effects);
  [[nodiscard]] const v1::Deployment& deployment() const { return deployment_; }
  // The named model, or the first without a name; null: it is not in the deployment.
  [[nodiscard]] std::shared_ptr<const ModelSpec> model(std::string_view name) const;
  // The first model visible to clients, which excludes stages of a cascade; null: none.
  [[nodiscard]] const ModelSpec* first_seen() const;
  [[nodiscard]] std::size_t variants() const { return variants_.size(); }  // number of models so far
  [[nodiscard]] bool ready(const ModelSpec& model) const;                  // some active instance holds it

  // ---- time and health ----
  void tick(TimeNs now, Effects& effects);
  void checked(const std::shared_ptr<Instance>& instance, const MaybeFault& fault, bool ready, TimeNs now,
               Effects& effects);

  // ---- rows ----
  [[nodiscard]] const std::shared_ptr<Instance>& at(dispatch::InstanceId slot) const { return by_slot_[slot]; }
  void sent(Instance& instance, TimeNs now);
  void unsent(Instance& instance, TimeNs now);  // undoes a start that was never sent
  // The worker is done with a batch; `lost`: from before an ejection. check_drained() follows, once rows that wait for
  // that slot have been started.
  void returned(Instance& instance, bool lost, TimeNs now);
  void check_drained(const std::shared_ptr<Instance>& instance, Effects& effects);
  void leave_behind(Instance& instance, TimeNs now);  // a batch whose instance has been ejected
  void answered_well(Instance& instance);
  // Handles an error; true: it may be the instance's fault, as it has not answered well since an earlier one.
  [[nodiscard]] bool answered_badly(Instance& instance, const std::string& error);
  // Other instances have answered well the rows that these had failed.
  void blame(const Others& instances, TimeNs now, Effects& effects);
  void eject(const std::shared_ptr<Instance>& instance, const std::string& why, TimeNs pause, TimeNs now,
             Effects& effects);
  [[nodiscard]] TimeNs short_pause() const;
  // Whether some active instance outside `others` takes a row of this length.
  [[nodiscard]] bool takes(std::int32_t length, dispatch::VariantId variant, const Others& others) const;
  // Max length of a model's longest runtime in service, in tokens, including draining instances; 0: none.
  [[nodiscard]] std::int32_t longest(dispatch::VariantId variant) const;
  // Share of a model's instances in service that are busy; 1: it has none.
  [[nodiscard]] double busy(dispatch::VariantId variant) const;
  [[nodiscard]] Fault no_instance(std::int32_t length, dispatch::VariantId variant) const;

  void fill(v1::Stats* out, dispatch::VariantId variant, TimeNs now) const;

 private:
  // The runtimes held by an instance, by the instance's name for them, shortest first.
  using Holdings = std::unordered_map<std::string, std::vector<const v1::Runtime*>>;
  static Holdings holdings_of(const v1::Deployment& deployment);
  // Gives each model of a deployment its number, which never changes for a name; a model served alone takes that of the
  // previous one. Returns false if there have been too many.
  [[nodiscard]] bool number(const v1::Deployment& deployment);
  [[nodiscard]] dispatch::VariantId variant_of(const v1::Deployment& deployment, const v1::Runtime& runtime) const;
  // The key of a runtime in runtime_ids_.
  [[nodiscard]] std::string key_of(const v1::Deployment& deployment, const v1::Runtime& runtime) const;
  [[nodiscard]] std::string key_of(const v1::Deployment& deployment,
                                   const std::vector<const v1::Runtime*>& runtimes) const;
  std::shared_ptr<Instance> make_instance(const v1::Deployment& deployment, const v1::Instance& wanted,
                                          const std::vector<const v1::Runtime*>& runtimes, std::string content,
                                          TimeNs now);
  void join(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects);
  void retire(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects);
  void start_drain(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects);
  [[nodiscard]] bool silent(const Instance& instance, TimeNs now) const;

  const v1::GatewayConfig& config_;
  dispatch::Scheduler& scheduler_;
  const Settle settle_;
  v1::Deployment deployment_;
  std::vector<std::shared_ptr<const ModelSpec>> models_;           // of the deployment
  std::unordered_map<std::string, dispatch::VariantId> variants_;  // of all models so far, by name
  std::vector<std::shared_ptr<Instance>> instances_;  // of the deployment, plus retired ones that still drain
  std::vector<std::shared_ptr<Instance>> by_slot_;    // scheduler's InstanceId -> instance
  std::unordered_map<std::string, dispatch::RuntimeId> runtime_ids_;  // by key_of()
  std::uint64_t ejections_ = 0;
};

}  // namespace arlo::gateway
