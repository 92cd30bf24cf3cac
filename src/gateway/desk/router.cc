#include "gateway/desk/router.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <string_view>
#include <utility>

#include "gateway/fleet/pipeline.h"

namespace arlo::gateway {
namespace {

constexpr TimeNs kTick = 10'000'000;                          // maximum delay of an expiry or a check
constexpr auto kLastWords = std::chrono::milliseconds(1000);  // for workers, when the gateway ends

dispatch::Options options_of(const v1::DispatchConfig& config) {
  dispatch::Options options;
  options.policy = dispatch::parse_policy(config.policy());
  options.lambda = config.lambda();
  options.alpha = config.alpha();
  options.max_peek = static_cast<std::int32_t>(config.max_peek());
  options.max_queued = static_cast<std::int32_t>(config.max_queued());
  options.batching = dispatch::parse_batching(config.batching());
  return options;
}

Fault fault_of(const Instance& instance, Reply reply, const transport::Answer& answer) {
  Fault fault{static_cast<Code>(answer.status),
              "worker '" + instance.worker_label + "', runtime '" + instance.runtime + "': " + answer.message};
  if (reply == Reply::kExpired) fault.code = Code::kDeadlineExceeded;
  if (reply == Reply::kBusy) {
    fault.code = Code::kResourceExhausted;
    fault.overload = true;
  }
  if (reply == Reply::kDead || reply == Reply::kMissing) fault.code = Code::kUnavailable;
  return fault;
}

}  // namespace

Router::Router(const v1::GatewayConfig& config)
    : config_(config),
      started_at_ms_(unix_ms()),
      started_ns_(now_ns()),
      scheduler_(options_of(config.dispatch())),
      fleet_(config_, scheduler_, [this](Effects& effects, TimeNs now) { desk_.settle(effects, now); }),
      desk_(config_, scheduler_, fleet_, books_, *this, *this) {
  books_.push_back(std::make_unique<Books>());
}

template <class Act>
void Router::locked(Act act) {
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    act(now_ns(), effects);
    if (stopping_ && idle()) idle_.notify_all();
  }
  run(effects);
}

Router::~Router() { stop(); }

void Router::start(Lane& lane) {
  lane_ = &lane;
  lane.loop().run_here([this] { due(); });
}

void Router::stop() {
  locked([this](TimeNs now, Effects& effects) {
    stopping_ = true;
    desk_.stop_audits(now, effects);
  });
  {
    std::unique_lock lock(mutex_);
    if (!idle_.wait_for(lock, kLastWords, [this] { return idle(); })) desk_.cancel_all();
    idle_.wait(lock, [this] { return idle(); });
  }
  if (lane_ == nullptr) return;
  std::promise<void> cleared;
  lane_->loop().run_here([&] {
    lane_->loop().clear(*this);
    cleared.set_value();
  });
  cleared.get_future().wait();
  lane_ = nullptr;
}

// ---- data path ----

std::shared_ptr<const ModelSpec> Router::model(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return fleet_.model(name);
}

dispatch::VariantId Router::variant_of(std::string_view model) const {
  const auto spec = fleet_.model(model);
  return spec == nullptr ? dispatch::VariantId{0} : spec->variant;
}

void Router::submit(Call& call) {
  locked([&](TimeNs now, Effects& effects) { desk_.submit(call, now, effects); });
}

void Router::cancel(Call& call) {
  locked([&](TimeNs now, Effects& effects) { desk_.cancel(call, now, effects); });
}

void Router::count_refused(const ModelSpec* model, const Fault& fault) {
  const std::lock_guard lock(mutex_);
  if (model == nullptr || model->stage) model = fleet_.first_seen();
  books_[model == nullptr ? 0 : model->variant]->refused(fault);
}

void Router::upstream_done(UpstreamCall& upstream, transport::Answer answer) {
  auto reply = classify(answer);
  std::shared_ptr<const std::string> body;
  if (reply == Reply::kGood) body = std::make_shared<const std::string>(std::move(answer.bytes));
  auto bad = upstream.take_all(body);
  Fault fault;
  if (reply != Reply::kGood) {
    fault = fault_of(*upstream.instance(), reply, answer);
  } else if (bad) {
    fault = std::move(*bad);
    reply = Reply::kError;
  }
  locked([&](TimeNs now, Effects& effects) { desk_.answered(upstream, reply, fault, now, effects); });
}

void Router::run(Effects& effects) {
  for (auto* upstream : effects.starts) upstream->start();
  for (const auto& instance : effects.checks) check_health(*this, instance, config_.health().timeout_ms(), *lane_);
  for (auto& [call, answer] : effects.partials) call->partial(std::move(answer));
  for (const auto& [audit, row] : effects.audits) {
    if (auto fault = audit->write(row)) {
      audit->fault = std::move(*fault);
    } else {
      audit->received_ns = now_ns();
      audit->deadline_ns = audit->received_ns + audit->about().of->default_timeout_ns;
    }
  }
  for (auto* call : effects.releases) call->let_go();
  for (const auto& [audit, row] : effects.audits) {
    if (audit->fault.code == Code::kOk) {
      submit(*audit);
    } else {
      audit->complete();
    }
  }
  for (const auto& call : effects.calls) call();
}

void Router::audit_done(Audit& audit) {
  locked([&](TimeNs, Effects&) {
    desk_.audit_ended(audit);
    delete &audit;
  });
}

// ---- control ----

MaybeFault Router::apply(const v1::Deployment& deployment, v1::ApplyReply* reply) {
  for (const auto& pipeline : deployment.pipelines()) {
    for (const auto& stage : pipeline.stages()) {
      if (!stage.has_tokens() || (config_.dispatch().policy() == "late" && config_.dispatch().batching() != "one"))
        continue;
      return invalid("pipeline '" + pipeline.name() +
                     "': token counts are chosen for batches where the gateway forms them: " +
                     "dispatch.policy = late, dispatch.batching = deadline");
    }
  }
  MaybeFault fault;
  bool changed = false;
  locked([&](TimeNs now, Effects& effects) {
    if (stopping_) {
      fault = Fault{Code::kUnavailable, "the gateway is stopping"};
      return;
    }
    fault = fleet_.admit(deployment, &changed);
    while (books_.size() < fleet_.variants()) books_.push_back(std::make_unique<Books>());
    for (std::size_t i = 0; i < books_.size(); ++i) {
      books_[i]->relevel(scheduler_, static_cast<dispatch::VariantId>(i));
    }
    if (fault) return;
    reply->set_version(deployment.version());
    reply->set_changed(changed);
    if (changed) fleet_.install(deployment, reply, now, effects);
  });
  if (changed) lane_->loop().run_here([this] { due(); });  // handles pending work
  return fault;
}

MaybeFault Router::drain(const std::string& instance, TimeNs timeout, std::function<void(bool)> done) {
  MaybeFault fault;
  locked([&](TimeNs now, Effects& effects) { fault = fleet_.drain(instance, timeout, std::move(done), now, effects); });
  return fault;
}

v1::Deployment Router::deployment() const {
  const std::lock_guard lock(mutex_);
  return fleet_.deployment();
}

bool Router::ready(std::string_view model) const {
  const std::lock_guard lock(mutex_);
  const auto spec = fleet_.model(model);
  return !closing_ && !stopping_ && spec != nullptr && fleet_.ready(*spec);
}

Histograms Router::histograms(std::string_view model) const {
  const std::lock_guard lock(mutex_);
  return books_[variant_of(model)]->histograms();
}

void Router::stats(std::string_view model, v1::Stats* out) const {
  const std::lock_guard lock(mutex_);
  const TimeNs now = now_ns();
  const auto variant = variant_of(model);
  const auto spec = fleet_.model(model);
  if (spec != nullptr) {
    out->set_model(spec->name);
    out->set_stage(spec->stage);
  }
  out->set_started_at_ms(started_at_ms_);
  out->set_at_ms(unix_ms());
  out->set_uptime_ns(static_cast<std::uint64_t>(now - started_ns_));
  out->set_policy(config_.dispatch().policy());
  out->set_queued(static_cast<std::uint32_t>(scheduler_.queued_of(variant)));
  out->set_parked(static_cast<std::uint32_t>(scheduler_.parked_of(variant)));
  out->set_in_flight(static_cast<std::uint32_t>(scheduler_.in_flight_of(variant)));
  books_[variant]->fill(out, now);
  out->set_price(static_cast<std::uint32_t>(desk_.price(variant)));
  desk_.fill_flow(out, spec.get());
  fleet_.fill(out, variant, now);  // after the books, whose levels it completes
}

void Router::sample(std::string_view model, v1::GetSampleReply* out) const {
  Sample::Rows rows;  // written outside the lock: there may be many
  {
    const std::lock_guard lock(mutex_);
    rows = desk_.audits().sample(variant_of(model));
  }
  fill_sample(rows, out);
}

// ---- time and health ----

void Router::due() {
  locked([this](TimeNs now, Effects& effects) {
    if (stopping_) return;
    desk_.tick(now, effects);
    fleet_.tick(now, effects);
    open_checks_ += static_cast<std::uint32_t>(effects.checks.size());
    lane_->loop().set(*this, now + kTick);
  });
}

void Router::health_done(const std::shared_ptr<Instance>& instance, const MaybeFault& fault, bool ready) {
  locked([&](TimeNs now, Effects& effects) {
    --open_checks_;
    fleet_.checked(instance, fault, ready && !stopping_, now, effects);
  });
}

}  // namespace arlo::gateway
