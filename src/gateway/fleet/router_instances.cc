// Instances of the router: deployments, joining, draining, ejection, health.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "gateway/desk/effects.h"
#include "gateway/log.h"
#include "gateway/desk/router.h"
#include "gateway/front/rpc.h"

namespace arlo::gateway {
namespace {

constexpr TimeNs kTick = 10'000'000;  // how late an expiry or a check may be
constexpr TimeNs kMs = 1'000'000;
constexpr std::uint32_t kMaxDoublings = 5;  // of the wait before an ejected instance is checked again

dispatch::RuntimeSpec spec_of(const v1::Runtime& runtime) {
  dispatch::RuntimeSpec spec;
  spec.max_length = static_cast<std::int32_t>(runtime.max_length());
  spec.max_batch = static_cast<std::int32_t>(runtime.max_batch());
  spec.capacity = static_cast<std::int32_t>(runtime.capacity());
  spec.dynamic = runtime.dynamic();
  for (const auto& point : runtime.latency()) {
    spec.latency.push_back({static_cast<std::int32_t>(point.length()), static_cast<std::int32_t>(point.batch()),
                            TimeNs{point.latency_us()} * 1000});
  }
  return spec;
}

bool in_service(const Instance& instance) {
  return instance.state == Instance::State::kActive || instance.state == Instance::State::kDraining;
}

}  // namespace

void Router::start(grpc::CompletionQueue& queue) {
  queue_ = &queue;
  ticker_ = std::thread([this] { tick_loop(); });
}

void Router::stop() {
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
    idle_.wait(lock, [this] { return open_upstream_ == 0; });
  }
  if (ticker_.joinable()) ticker_.join();
}

std::shared_ptr<Worker> Router::worker_for(const std::string& endpoint) {
  auto& known = workers_[endpoint];
  auto worker = known.lock();
  if (worker == nullptr) {
    worker = std::make_shared<Worker>(endpoint);
    known = worker;
  }
  return worker;
}

// Counters per level follow the levels when a new max_length comes in between.
void Router::relevel() {
  std::vector<LevelCount> levels(static_cast<std::size_t>(scheduler_.levels()));
  for (std::size_t i = 0; i < levels.size(); ++i) {
    levels[i].max_length = scheduler_.level_max_length(static_cast<std::int32_t>(i));
    for (const auto& old : levels_) {
      if (old.max_length == levels[i].max_length) levels[i] = old;
    }
  }
  levels_ = std::move(levels);
  if (!levels_.empty()) {
    arrivals_by_length_.resize(
        std::max(arrivals_by_length_.size(), static_cast<std::size_t>(levels_.back().max_length) + 1));
  }
}

MaybeFault Router::apply(const v1::Deployment& deployment, v1::ApplyReply* reply) {
  if (auto fault = check_deployment(deployment)) return fault;
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    const TimeNs now = now_ns();
    if (stopping_) return Fault{Code::kUnavailable, "the gateway is stopping"};
    if (deployment.version() < deployment_.version()) {
      return Fault{Code::kFailedPrecondition, "deployment version " + std::to_string(deployment.version()) +
                                                  " is older than version " + std::to_string(deployment_.version()) +
                                                  ", which is in force"};
    }
    reply->set_version(deployment.version());
    if (deployment.version() == deployment_.version()) {
      if (google::protobuf::util::MessageDifferencer::Equals(deployment, deployment_)) return {};
      return Fault{Code::kFailedPrecondition, "deployment version " + std::to_string(deployment.version()) +
                                                  " is in force with other content: raise the version"};
    }
    std::unordered_map<std::string, const v1::Runtime*> runtimes;
    std::unordered_map<std::string, dispatch::RuntimeId> ids;
    try {
      for (const auto& runtime : deployment.runtimes()) {
        auto [known, fresh] = runtime_ids_.try_emplace(runtime.SerializeAsString(), 0);
        if (fresh) {
          try {
            known->second = scheduler_.add_runtime(spec_of(runtime));
          } catch (...) {
            runtime_ids_.erase(known);
            throw;
          }
        }
        runtimes[runtime.name()] = &runtime;
        ids[runtime.name()] = known->second;
      }
    } catch (const std::invalid_argument& error) {
      relevel();
      return invalid(std::string("runtimes: ") + error.what());
    }
    relevel();
    reply->set_changed(true);

    std::vector<std::shared_ptr<Instance>> kept;
    for (const auto& wanted : deployment.instances()) {
      const auto& runtime = *runtimes.at(wanted.runtime());
      const std::string content = wanted.SerializeAsString() + runtime.SerializeAsString();
      std::shared_ptr<Instance> instance;
      for (const auto& present : instances_) {
        if (!present->retired && present->content == content) instance = present;
      }
      if (instance == nullptr || instance->state == Instance::State::kDraining) {
        // Also for one that still drains: it comes back as a new instance while the old one empties.
        instance = std::make_shared<Instance>();
        instance->id = wanted.id();
        instance->worker_label = wanted.worker().empty() ? wanted.endpoint() : wanted.worker();
        instance->worker = worker_for(wanted.endpoint());
        instance->runtime = {runtime.name(), static_cast<std::int32_t>(runtime.max_length()),
                             static_cast<std::int32_t>(runtime.max_batch()), runtime.dynamic()};
        instance->content = content;
        instance->runtime_id = ids.at(runtime.name());
        instance->inflight_limit = static_cast<std::int32_t>(wanted.inflight_limit());
        instance->next_check_ns = now;
        reply->add_joining(wanted.id());
      } else if (instance->state == Instance::State::kDrained) {
        instance->state = Instance::State::kJoining;
        instance->next_check_ns = now;
        reply->add_joining(wanted.id());
      }
      kept.push_back(std::move(instance));
    }
    deployment_ = deployment;
    model_ = make_model(deployment);
    auto present = std::move(instances_);
    instances_ = kept;
    for (const auto& instance : present) {
      if (std::find(kept.begin(), kept.end(), instance) != kept.end()) continue;
      if (!instance->retired) reply->add_draining(instance->id);
      retire(instance, now, effects);
    }
    apply_actions(effects, now);
    log(LogLevel::kInfo, "deployment_applied",
        {{"version", static_cast<std::int64_t>(deployment.version())},
         {"instances", static_cast<std::int64_t>(deployment.instances_size())},
         {"joining", static_cast<std::int64_t>(reply->joining_size())},
         {"draining", static_cast<std::int64_t>(reply->draining_size())}});
    wake_.notify_all();
  }
  run(effects);
  return {};
}

// Out of the deployment: forgotten once nothing runs on it.
void Router::retire(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects) {
  instance->retired = true;
  if (instance->in_flight != 0 || in_service(*instance)) {
    instances_.push_back(instance);
    start_drain(instance, now, effects);
  }
}

void Router::start_drain(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects) {
  if (instance->state == Instance::State::kActive) {
    instance->state = Instance::State::kDraining;
    if (scheduler_.drain(instance->slot, now, effects.actions)) {
      by_slot_[instance->slot] = nullptr;
      instance->slot = dispatch::kNone;
    }
    apply_actions(effects, now);
  } else if (instance->state != Instance::State::kDraining) {
    instance->state = Instance::State::kDraining;  // joining or ejected: nothing to wait for but lost rows
  }
  check_drained(instance, effects);
}

// The scheduler frees a draining instance's slot when its last row ends; so do we.
void Router::check_drained(const std::shared_ptr<Instance>& instance, Effects& effects) {
  if (instance->state != Instance::State::kDraining) return;
  if (instance->in_flight != 0) return;  // while rows are queued there, some run
  if (instance->slot != dispatch::kNone) {
    by_slot_[instance->slot] = nullptr;
    instance->slot = dispatch::kNone;
  }
  instance->state = Instance::State::kDrained;
  for (auto& waiter : instance->waiters) {
    effects.calls.push_back([done = std::move(waiter.done)] { done(true); });
  }
  instance->waiters.clear();
  if (instance->retired) std::erase(instances_, instance);
  log(LogLevel::kInfo, "instance_drained", {{"instance", instance->id}, {"worker", instance->worker_label}});
}

MaybeFault Router::drain(const std::string& id, TimeNs timeout, std::function<void(bool)> done) {
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    const TimeNs now = now_ns();
    std::shared_ptr<Instance> instance;
    for (const auto& known : instances_) {
      if (known->id == id && !known->retired) instance = known;
    }
    if (instance == nullptr) return Fault{Code::kNotFound, "no instance '" + id + "' in the deployment"};
    instance->waiters.push_back({now + timeout, std::move(done)});
    if (instance->state == Instance::State::kDrained) instance->state = Instance::State::kDraining;
    start_drain(instance, now, effects);
  }
  run(effects);
  return {};
}

void Router::eject(const std::shared_ptr<Instance>& instance, const std::string& why, TimeNs now, Effects& effects) {
  if (!in_service(*instance)) return;
  instance->last_error = why;
  if (instance->slot != dispatch::kNone) {
    scheduler_.leave(instance->slot, now, effects.actions);
    // The actions name the slot, so it is cleared after they are applied.
    apply_actions(effects, now);
    by_slot_[instance->slot] = nullptr;
    instance->slot = dispatch::kNone;
  }
  ++ejections_;
  instance->failed_checks = 0;
  // A worker may pass its checks and fail every request: it comes back less and less often.
  const auto doublings = std::min<std::uint32_t>(instance->ejections_in_row++, kMaxDoublings);
  instance->next_check_ns = now + (TimeNs{config_.health().retry_interval_ms()} * kMs << doublings);
  if (instance->state == Instance::State::kActive) instance->state = Instance::State::kEjected;
  check_drained(instance, effects);
  log(LogLevel::kWarning, "instance_ejected",
      {{"instance", instance->id},
       {"worker", instance->worker_label},
       {"runtime", instance->runtime.name},
       {"reason", why}});
}

void Router::join(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects) {
  // The scheduler may start parked rows on it at once, naming a slot that is not in by_slot_ yet: a slot is either the
  // next new one or a freed one, so room is made and the actions are applied after the slot is known.
  instance->slot = scheduler_.join(instance->runtime_id, instance->inflight_limit, now, effects.actions);
  if (by_slot_.size() <= instance->slot) by_slot_.resize(instance->slot + 1);
  by_slot_[instance->slot] = instance;
  instance->state = Instance::State::kActive;
  instance->failed_checks = 0;
  instance->next_check_ns = now + TimeNs{config_.health().interval_ms()} * kMs;
  apply_actions(effects, now);
  log(LogLevel::kInfo, "instance_joined",
      {{"instance", instance->id}, {"worker", instance->worker_label}, {"runtime", instance->runtime.name}});
}

void Router::tick_loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, std::chrono::nanoseconds(kTick));
    if (stopping_) break;
    Effects effects;
    const TimeNs now = now_ns();
    // Not only when a deadline has come: `late` looks again at what waits, which it does at events only.
    if (scheduler_.queued() > 0) {
      scheduler_.expire(now, effects.actions);
      apply_actions(effects, now);
    }
    tick_instances(now, effects);
    lock.unlock();
    run(effects);
    lock.lock();
  }
}

void Router::tick_instances(TimeNs now, Effects& effects) {
  for (const auto& instance : instances_) {
    for (std::size_t i = 0; i < instance->waiters.size();) {
      if (instance->waiters[i].deadline_ns > now) {
        ++i;
        continue;
      }
      effects.calls.push_back([done = std::move(instance->waiters[i].done)] { done(false); });
      instance->waiters.erase(instance->waiters.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (instance->checking || instance->next_check_ns > now) continue;
    if (instance->state == Instance::State::kDrained) continue;
    // One that is on its way out is asked too while it has rows: they would wait for a worker that hangs.
    if (instance->retired && (instance->state != Instance::State::kDraining || instance->in_flight == 0)) continue;
    if (instance->state == Instance::State::kActive && instance->answered != instance->answered_at_check) {
      // It has answered requests since: that is as good as a check.
      instance->answered_at_check = instance->answered;
      instance->failed_checks = 0;
      instance->next_check_ns = now + TimeNs{config_.health().interval_ms()} * kMs;
      continue;
    }
    instance->checking = true;
    ++open_upstream_;
    effects.checks.push_back(instance);
  }
}

// One ModelReady call; deletes itself.
class HealthCheck final : public Event {
 public:
  HealthCheck(Router& router, std::shared_ptr<Instance> instance) : router_(router), instance_(std::move(instance)) {
    request_.set_name(instance_->runtime.name);
    const auto timeout = std::chrono::milliseconds(router_.config_.health().timeout_ms());
    context_.set_deadline(std::chrono::system_clock::now() + timeout);
    reader_ = instance_->worker->stub->AsyncModelReady(&context_, request_, router_.queue_);
    reader_->Finish(&response_, &status_, this);
  }
  void proceed(bool) override {
    router_.health_done(instance_, status_, response_.ready());
    delete this;
  }

 private:
  Router& router_;
  std::shared_ptr<Instance> instance_;
  grpc::ClientContext context_;
  inference::ModelReadyRequest request_;
  inference::ModelReadyResponse response_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<inference::ModelReadyResponse>> reader_;
};

void Router::check_health(const std::shared_ptr<Instance>& instance) { new HealthCheck(*this, instance); }

void Router::health_done(const std::shared_ptr<Instance>& instance, const grpc::Status& status, bool ready) {
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    const TimeNs now = now_ns();
    instance->checking = false;
    const bool healthy = status.ok() && ready;
    if (!healthy) {
      instance->last_error =
          status.ok() ? "runtime '" + instance->runtime.name + "' is not ready on the worker" : status.error_message();
    }
    const auto& health = config_.health();
    switch (instance->state) {
      case Instance::State::kJoining:
      case Instance::State::kEjected:
        if (healthy && !stopping_ && !instance->retired) {
          join(instance, now, effects);
        } else {
          instance->next_check_ns = now + TimeNs{health.retry_interval_ms()} * kMs;
        }
        break;
      case Instance::State::kActive:
      case Instance::State::kDraining: {
        instance->failed_checks = healthy ? 0 : instance->failed_checks + 1;
        instance->next_check_ns = now + TimeNs{healthy ? health.interval_ms() : health.retry_interval_ms()} * kMs;
        if (instance->failed_checks >= health.failures()) {
          eject(instance, "health check: " + instance->last_error, now, effects);
        }
        break;
      }
      case Instance::State::kDrained:
        break;
    }
    if (--open_upstream_ == 0) idle_.notify_all();
  }
  run(effects);
}

}  // namespace arlo::gateway
