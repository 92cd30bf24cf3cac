#include "gateway/fleet/fleet.h"

#include <algorithm>
#include <utility>

#include "gateway/fleet/cascade.h"
#include "gateway/fleet/pipeline.h"
#include "gateway/log.h"

namespace arlo::gateway {
namespace {

constexpr std::uint32_t kMaxDoublings = 5;  // of the wait before an ejected instance is checked again
constexpr std::uint32_t kBlames = 3;        // in a row, for an instance that has answered well since its last ejection
constexpr TimeNs kLongPause = 8;            // short pauses: each return of a failing instance costs rows a second try
constexpr TimeNs kSilence = 20;             // minimum, as a multiple of the longest row's predicted time

bool among(const Fleet::Others& others, const Instance* instance) {
  return std::any_of(others.begin(), others.end(), [&](const auto& other) { return other.get() == instance; });
}

}  // namespace

Fleet::Fleet(const v1::GatewayConfig& config, dispatch::Scheduler& scheduler, Settle settle)
    : config_(config), scheduler_(scheduler), settle_(std::move(settle)) {}

std::shared_ptr<const ModelSpec> Fleet::model(std::string_view name) const {
  if (name.empty()) return models_.empty() ? nullptr : models_.front();
  for (const auto& model : models_) {
    if (model->name == name) return model;
  }
  return nullptr;
}

const ModelSpec* Fleet::first_seen() const {
  const auto seen = std::find_if(models_.begin(), models_.end(), [](const auto& model) { return !model->stage; });
  return seen == models_.end() ? nullptr : seen->get();
}

bool Fleet::ready(const ModelSpec& model) const {
  if (model.flow != nullptr) {
    const auto& stages = model.flow->stages;
    return std::all_of(stages.begin(), stages.end(), [&](const auto& stage) {
      return std::any_of(stage.variants.begin(), stage.variants.end(),
                         [&](const auto& variant) { return ready(*variant.model); });
    });
  }
  if (model.cascade != nullptr) {
    const auto& stages = model.cascade->stages;
    return std::any_of(stages.begin(), stages.end(), [&](const auto& stage) { return ready(*stage.model); });
  }
  return std::any_of(instances_.begin(), instances_.end(), [&](const auto& instance) {
    return instance->state == Instance::State::kActive && instance->max_length(model.variant) > 0;
  });
}

TimeNs Fleet::short_pause() const { return TimeNs{config_.health().retry_interval_ms()} * kMs; }

// ---- in and out of service ----

void Fleet::join(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects) {
  // The scheduler may start parked rows on it at once, naming a slot that is not in by_slot_ yet. A slot is the next
  // new one or a freed one, so we make room first and settle the actions once the slot is known.
  instance->slot = scheduler_.join(instance->joins_as, instance->inflight_limit, now, effects.actions);
  if (by_slot_.size() <= instance->slot) by_slot_.resize(instance->slot + 1);
  by_slot_[instance->slot] = instance;
  instance->state = Instance::State::kActive;
  instance->failed_checks = 0;
  instance->errors_in_row = 0;
  instance->blamed_in_row = 0;
  instance->next_check_ns = now + TimeNs{config_.health().interval_ms()} * kMs;
  settle_(effects, now);
  log(LogLevel::kInfo, "instance_joined",
      {{"instance", instance->id}, {"worker", instance->worker_label}, {"runtime", instance->runtime}});
}

void Fleet::eject(const std::shared_ptr<Instance>& instance, const std::string& why, TimeNs pause, TimeNs now,
                  Effects& effects) {
  if (!instance->in_service()) return;
  instance->last_error = why;
  if (instance->slot != dispatch::kNone) {
    scheduler_.leave(instance->slot, now, effects.actions);
    // The actions name the slot, so it is cleared after they are settled.
    settle_(effects, now);
    by_slot_[instance->slot] = nullptr;
    instance->slot = dispatch::kNone;
  }
  ++ejections_;
  ++instance->ejections;
  instance->failed_checks = 0;
  // A worker may pass its checks and still fail every request, so checks come less and less often.
  const auto doublings = std::min<std::uint32_t>(instance->ejections_in_row++, kMaxDoublings);
  instance->next_check_ns = now + (pause << doublings);
  if (instance->state == Instance::State::kActive) instance->state = Instance::State::kEjected;
  check_drained(instance, effects);
  log(LogLevel::kWarning, "instance_ejected",
      {{"instance", instance->id},
       {"worker", instance->worker_label},
       {"runtime", instance->runtime},
       {"reason", why}});
}

// Removes an instance from the deployment: it is forgotten once nothing runs on it.
void Fleet::retire(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects) {
  instance->retired = true;
  if (instance->in_flight != 0 || instance->in_service()) {
    instances_.push_back(instance);
    start_drain(instance, now, effects);
  }
}

void Fleet::start_drain(const std::shared_ptr<Instance>& instance, TimeNs now, Effects& effects) {
  if (instance->state == Instance::State::kActive) {
    instance->state = Instance::State::kDraining;
    if (scheduler_.drain(instance->slot, now, effects.actions)) {
      by_slot_[instance->slot] = nullptr;
      instance->slot = dispatch::kNone;
    }
    settle_(effects, now);
  } else if (instance->state != Instance::State::kDraining) {
    instance->state = Instance::State::kDraining;  // joining or ejected: nothing to wait for
  }
  check_drained(instance, effects);
}

// Frees a draining instance's slot when its last row ends, as the scheduler does.
void Fleet::check_drained(const std::shared_ptr<Instance>& instance, Effects& effects) {
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
  // The reference may be into instances_. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const auto drained = instance;
  if (drained->retired) std::erase(instances_, drained);
  log(LogLevel::kInfo, "instance_drained", {{"instance", drained->id}, {"worker", drained->worker_label}});
}

MaybeFault Fleet::drain(const std::string& id, TimeNs timeout, std::function<void(bool)> done, TimeNs now,
                        Effects& effects) {
  std::shared_ptr<Instance> instance;
  for (const auto& known : instances_) {
    if (known->id == id && !known->retired) instance = known;
  }
  if (instance == nullptr) return Fault{Code::kNotFound, "no instance '" + id + "' in the deployment"};
  instance->waiters.push_back({now + timeout, std::move(done)});
  if (instance->state == Instance::State::kDrained) instance->state = Instance::State::kDraining;
  start_drain(instance, now, effects);
  return {};
}

// ---- time and health ----

// A worker whose engine hangs may still answer checks, but never a row. Only this check frees the slots of its rows.
bool Fleet::silent(const Instance& instance, TimeNs now) const {
  if (!instance.in_service() || instance.in_flight == 0) return false;
  TimeNs longest = 0;
  for (const auto& [id, runtime] : instance.members) {
    longest = std::max(longest, scheduler_.cost(id, runtime.max_length, runtime.max_batch));
  }
  const TimeNs limit = std::max(TimeNs{config_.health().silence_ms()} * kMs, kSilence * longest);
  return now - std::max(instance.heard_ns, instance.busy_since) >= limit;
}

void Fleet::tick(TimeNs now, Effects& effects) {
  const auto instances = instances_;  // an ejection may remove one
  for (const auto& instance : instances) {
    for (std::size_t i = 0; i < instance->waiters.size();) {
      if (instance->waiters[i].deadline_ns > now) {
        ++i;
        continue;
      }
      effects.calls.push_back([done = std::move(instance->waiters[i].done)] { done(false); });
      instance->waiters.erase(instance->waiters.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (silent(*instance, now)) {
      eject(instance, "it has answered no row for " + std::to_string(config_.health().silence_ms()) + " ms or more",
            short_pause(), now, effects);
    }
    if (instance->checking || instance->next_check_ns > now) continue;
    if (instance->state == Instance::State::kDrained) continue;
    // A retired instance with rows is checked as well: the rows would wait for a hanging worker.
    if (instance->retired && (instance->state != Instance::State::kDraining || instance->in_flight == 0)) continue;
    if (instance->state == Instance::State::kActive && instance->answered != instance->answered_at_check) {
      // It has answered requests since the last check, which proves its health as well.
      instance->answered_at_check = instance->answered;
      instance->failed_checks = 0;
      instance->next_check_ns = now + TimeNs{config_.health().interval_ms()} * kMs;
      continue;
    }
    instance->checking = true;
    effects.checks.push_back(instance);
  }
}

void Fleet::checked(const std::shared_ptr<Instance>& instance, const MaybeFault& fault, bool ready, TimeNs now,
                    Effects& effects) {
  instance->checking = false;
  const bool healthy = !fault && ready;
  if (!healthy) {
    instance->last_error = fault ? fault->message : "runtime '" + instance->runtime + "' is not ready on the worker";
  }
  // A check begun before the ejection proves nothing about the instance afterwards.
  if (instance->state == Instance::State::kEjected && now < instance->next_check_ns) return;
  const auto& health = config_.health();
  switch (instance->state) {
    case Instance::State::kJoining:
    case Instance::State::kEjected:
      // Old rows that it still works on would take the slots of new ones.
      if (healthy && !instance->retired && instance->left_behind == 0) {
        join(instance, now, effects);
      } else {
        instance->next_check_ns = now + short_pause();
      }
      break;
    case Instance::State::kActive:
    case Instance::State::kDraining: {
      instance->failed_checks = healthy ? 0 : instance->failed_checks + 1;
      instance->next_check_ns = now + TimeNs{healthy ? health.interval_ms() : health.retry_interval_ms()} * kMs;
      if (instance->failed_checks >= health.failures()) {
        eject(instance, "health check: " + instance->last_error, short_pause(), now, effects);
      }
      break;
    }
    case Instance::State::kDrained:
      break;
  }
}

// ---- rows ----

void Fleet::sent(Instance& instance, TimeNs now) {
  if (instance.in_flight++ == 0) instance.busy_since = now;
  ++instance.started;
}

void Fleet::unsent(Instance& instance, TimeNs now) {
  --instance.started;
  if (--instance.in_flight == 0) instance.busy_ns += now - instance.busy_since;
}

void Fleet::leave_behind(Instance& instance, TimeNs now) {
  ++instance.left_behind;
  if (--instance.in_flight == 0) instance.busy_ns += now - instance.busy_since;
}

void Fleet::returned(Instance& instance, bool lost, TimeNs now) {
  if (lost) {
    --instance.left_behind;
    return;
  }
  instance.heard_ns = now;
  if (--instance.in_flight == 0) instance.busy_ns += now - instance.busy_since;
}

void Fleet::answered_well(Instance& instance) {
  ++instance.answered;
  instance.errors_in_row = 0;
  instance.blamed_in_row = 0;
  instance.ejections_in_row = 0;
}

bool Fleet::answered_badly(Instance& instance, const std::string& error) {
  instance.last_error = error;
  return ++instance.errors_in_row > 1 || instance.ejections_in_row != 0;
}

void Fleet::blame(const Others& instances, TimeNs now, Effects& effects) {
  for (const auto& instance : instances) {
    ++instance->blamed_in_row;
    // An instance without a good answer since its last ejection gets no second chance.
    if (instance->blamed_in_row < kBlames && instance->ejections_in_row == 0) continue;
    eject(instance, "other instances answer what it fails: " + instance->last_error, kLongPause * short_pause(), now,
          effects);
  }
}

bool Fleet::takes(std::int32_t length, dispatch::VariantId variant, const Others& others) const {
  return std::any_of(instances_.begin(), instances_.end(), [&](const auto& instance) {
    return instance->state == Instance::State::kActive && instance->max_length(variant) >= length &&
           !among(others, instance.get());
  });
}

std::int32_t Fleet::longest(dispatch::VariantId variant) const {
  std::int32_t longest = 0;
  for (const auto& instance : instances_) {
    if (instance->in_service()) longest = std::max(longest, instance->max_length(variant));
  }
  return longest;
}

double Fleet::busy(dispatch::VariantId variant) const {
  double instances = 0;
  double busy = 0;
  for (const auto& instance : instances_) {
    if (instance->state != Instance::State::kActive || instance->max_length(variant) == 0) continue;
    ++instances;
    busy += instance->in_flight > 0 ? 1 : 0;
  }
  return instances == 0 ? 1 : busy / instances;
}

Fault Fleet::no_instance(std::int32_t length, dispatch::VariantId variant) const {
  std::size_t active = 0;
  std::string why;
  for (const auto& instance : instances_) {
    active += instance->state == Instance::State::kActive ? 1 : 0;
    if (instance->max_length(variant) >= length && !instance->last_error.empty()) why = instance->last_error;
  }
  return {Code::kUnavailable, "no healthy instance takes a row of length " + std::to_string(length) + " (" +
                                  std::to_string(active) + " of " + std::to_string(instances_.size()) +
                                  " instances are active)" + (why.empty() ? "" : "; last error: " + why)};
}

}  // namespace arlo::gateway
