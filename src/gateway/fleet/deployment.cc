// The fleet's deployments: brings instances and models into the wanted state.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gateway/fleet/cascade.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/pipeline.h"
#include "gateway/log.h"

namespace arlo::gateway {
namespace {

dispatch::RuntimeSpec spec_of(const v1::Runtime& runtime, dispatch::VariantId variant) {
  dispatch::RuntimeSpec spec;
  spec.variant = variant;
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

// The states of an instance are those of its statistics, in the same order.
v1::InstanceStats::State state_of(const Instance& instance) {
  return static_cast<v1::InstanceStats::State>(static_cast<int>(instance.state) + v1::InstanceStats::STATE_JOINING);
}
static_assert(static_cast<int>(Instance::State::kDrained) + v1::InstanceStats::STATE_JOINING ==
              v1::InstanceStats::STATE_DRAINED);

}  // namespace

Fleet::Holdings Fleet::holdings_of(const v1::Deployment& deployment) {
  Holdings holdings;
  for (const auto& runtime : deployment.runtimes()) holdings[runtime.name()] = {&runtime};
  for (const auto& bundle : deployment.bundles()) {
    std::vector<const v1::Runtime*> members;
    for (const auto& name : bundle.runtimes()) members.push_back(holdings.at(name).front());
    std::sort(members.begin(), members.end(),
              [](const auto* a, const auto* b) { return a->max_length() < b->max_length(); });
    holdings[bundle.name()] = std::move(members);
  }
  return holdings;
}

bool Fleet::number(const v1::Deployment& deployment) {
  const auto names = names_of(deployment);
  if (names.size() == 1 && variants_.size() <= 1) variants_ = {{names.front(), 0}};
  for (const auto& name : names) {
    if (variants_.contains(name)) continue;
    if (variants_.size() == dispatch::kVariants) return false;
    variants_.emplace(name, static_cast<dispatch::VariantId>(variants_.size()));
  }
  return true;
}

dispatch::VariantId Fleet::variant_of(const v1::Deployment& deployment, const v1::Runtime& runtime) const {
  return variants_.at(model_of(deployment, runtime));
}

std::string Fleet::key_of(const v1::Deployment& deployment, const v1::Runtime& runtime) const {
  return std::to_string(variant_of(deployment, runtime)) + ' ' + runtime.SerializeAsString();
}

std::string Fleet::key_of(const v1::Deployment& deployment, const std::vector<const v1::Runtime*>& runtimes) const {
  std::string key;
  for (const auto* runtime : runtimes) key += key_of(deployment, *runtime);
  return key;
}

std::shared_ptr<Instance> Fleet::make_instance(const v1::Deployment& deployment, const v1::Instance& wanted,
                                               const std::vector<const v1::Runtime*>& runtimes, std::string content,
                                               TimeNs now) {
  auto instance = std::make_shared<Instance>();
  instance->id = wanted.id();
  instance->worker_label = wanted.worker().empty() ? wanted.endpoint() : wanted.worker();
  instance->endpoint = wanted.endpoint();
  instance->runtime = wanted.runtime();
  for (const auto* runtime : runtimes) {
    instance->members.push_back(
        {runtime_ids_.at(key_of(deployment, *runtime)),
         {runtime->name(), static_cast<std::int32_t>(runtime->max_length()),
          static_cast<std::int32_t>(runtime->max_batch()), runtime->dynamic(), variant_of(deployment, *runtime)}});
  }
  instance->joins_as = runtime_ids_.at(key_of(deployment, runtimes));
  instance->content = std::move(content);
  instance->inflight_limit = static_cast<std::int32_t>(wanted.inflight_limit());
  instance->next_check_ns = now;
  return instance;
}

MaybeFault Fleet::admit(const v1::Deployment& deployment, bool* changed) {
  *changed = false;
  if (deployment.version() < deployment_.version()) {
    return Fault{Code::kFailedPrecondition, "deployment version " + std::to_string(deployment.version()) +
                                                " is older than version " + std::to_string(deployment_.version()) +
                                                ", which is in force"};
  }
  if (deployment.version() == deployment_.version()) {
    if (google::protobuf::util::MessageDifferencer::Equals(deployment, deployment_)) return {};
    return Fault{Code::kFailedPrecondition, "deployment version " + std::to_string(deployment.version()) +
                                                " is in force with other content: raise the version"};
  }
  if (!number(deployment)) {
    return Fault{Code::kResourceExhausted, "there have been " + std::to_string(dispatch::kVariants) +
                                               " models on these instances, the most that are told apart: start the "
                                               "gateway anew"};
  }
  try {
    for (const auto& runtime : deployment.runtimes()) {
      auto key = key_of(deployment, runtime);
      if (runtime_ids_.contains(key)) continue;
      const auto id = scheduler_.add_runtime(spec_of(runtime, variant_of(deployment, runtime)));
      runtime_ids_.emplace(std::move(key), id);
    }
    for (const auto& [name, runtimes] : holdings_of(deployment)) {
      auto key = key_of(deployment, runtimes);
      if (runtime_ids_.contains(key)) continue;
      std::vector<dispatch::RuntimeId> ids;
      for (const auto* runtime : runtimes) ids.push_back(runtime_ids_.at(key_of(deployment, *runtime)));
      runtime_ids_.emplace(std::move(key), scheduler_.add_bundle(ids));
    }
  } catch (const std::invalid_argument& error) {
    return invalid(std::string("runtimes: ") + error.what());
  }
  *changed = true;
  return {};
}

void Fleet::install(const v1::Deployment& deployment, v1::ApplyReply* reply, TimeNs now, Effects& effects) {
  const Holdings holdings = holdings_of(deployment);
  std::vector<std::shared_ptr<Instance>> kept;
  for (const auto& wanted : deployment.instances()) {
    const auto& runtimes = holdings.at(wanted.runtime());
    std::string content = wanted.SerializeAsString();
    content += key_of(deployment, runtimes);
    std::shared_ptr<Instance> instance;
    for (const auto& present : instances_) {
      if (!present->retired && present->content == content) instance = present;
    }
    if (instance == nullptr || instance->state == Instance::State::kDraining) {
      // A draining instance comes back as a new one while the old one empties.
      instance = make_instance(deployment, wanted, runtimes, std::move(content), now);
      reply->add_joining(wanted.id());
    } else if (instance->state == Instance::State::kDrained) {
      instance->state = Instance::State::kJoining;
      instance->next_check_ns = now;
      reply->add_joining(wanted.id());
    }
    kept.push_back(std::move(instance));
  }
  deployment_ = deployment;
  const auto before = std::move(models_);  // parts shared with the new models are reused
  models_.clear();
  for (const v1::Model* model : models_of(deployment)) {
    models_.push_back(make_model(deployment, *model, variants_.at(model->name())));
    scheduler_.set_share(models_.back()->variant, models_.back()->share);
  }
  const FindModel find = [this](const std::string& name) { return this->model(name); };
  for (const auto& cascade : deployment.cascades()) {
    models_.push_back(make_cascade(deployment, cascade, find, variants_.at(cascade.name())));
  }
  for (const auto& pipeline : deployment.pipelines()) {
    models_.push_back(make_pipeline(deployment, pipeline, find, variants_.at(pipeline.name())));
  }
  auto present = std::move(instances_);
  instances_ = kept;
  for (const auto& instance : present) {
    if (std::find(kept.begin(), kept.end(), instance) != kept.end()) continue;
    if (!instance->retired) reply->add_draining(instance->id);
    retire(instance, now, effects);
  }
  log(LogLevel::kInfo, "deployment_applied",
      {{"version", static_cast<std::int64_t>(deployment.version())},
       {"instances", static_cast<std::int64_t>(deployment.instances_size())},
       {"joining", static_cast<std::int64_t>(reply->joining_size())},
       {"draining", static_cast<std::int64_t>(reply->draining_size())}});
}

void Fleet::fill(v1::Stats* out, dispatch::VariantId variant, TimeNs now) const {
  out->set_deployment_version(deployment_.version());
  out->set_ejections(ejections_);
  for (auto& level : *out->mutable_levels()) {
    level.set_instances(
        static_cast<std::uint32_t>(std::count_if(instances_.begin(), instances_.end(), [&](const auto& instance) {
          return instance->state == Instance::State::kActive &&
                 std::any_of(instance->members.begin(), instance->members.end(), [&](const auto& member) {
                   return member.runtime.variant == variant &&
                          static_cast<std::uint32_t>(member.runtime.max_length) == level.max_length();
                 });
        })));
  }
  for (const auto& instance : instances_) {
    auto* stats = out->add_instances();
    stats->set_id(instance->id);
    stats->set_worker(instance->worker_label);
    stats->set_runtime(instance->runtime);
    stats->set_state(state_of(*instance));
    stats->set_in_flight(instance->in_flight);
    if (instance->slot != dispatch::kNone) {
      stats->set_queued(static_cast<std::uint32_t>(scheduler_.view(instance->slot).queued));
    }
    stats->set_started(instance->started);
    stats->set_failed(instance->failed);
    const TimeNs busy = instance->busy_ns + (instance->in_flight != 0 ? now - instance->busy_since : 0);
    stats->set_busy_us(static_cast<std::uint64_t>(busy / 1000));
    stats->set_ejections(instance->ejections);
    if (instance->state == Instance::State::kEjected) stats->set_last_error(instance->last_error);
  }
}

}  // namespace arlo::gateway
