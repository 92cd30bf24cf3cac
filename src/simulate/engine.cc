#include "simulate/engine.h"

#include <string>

#include "simulate/engine_impl.h"

namespace arlo::simulate {

Engine::Engine(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

RuntimeId Engine::add_runtime(const RuntimeOptions& runtime) { return impl_->fleet_.add_runtime(runtime); }
RuntimeId Engine::add_bundle(const std::vector<RuntimeId>& runtimes, std::int32_t inflight_limit) {
  return impl_->fleet_.add_bundle(runtimes, inflight_limit);
}
WorkerId Engine::add_worker(RuntimeId runtime, TimeNs at) { return impl_->fleet_.add_worker(runtime, at, impl_->now_); }
void Engine::replace(WorkerId worker, RuntimeId runtime, TimeNs delay) { impl_->replace(worker, runtime, delay); }
void Engine::remove(WorkerId worker) { impl_->remove(worker); }
void Engine::fail(WorkerId worker, TimeNs restart) { impl_->fail(worker, restart); }
void Engine::slow(WorkerId worker, double factor) { impl_->fleet_.slow(worker, factor); }
void Engine::feed(std::span<const TimeNs> arrived, std::span<const std::int32_t> length,
                  std::span<const dispatch::VariantId> variant) {
  impl_->feed_.add(arrived, length, variant);
}
void Engine::set_variant(dispatch::VariantId variant, TimeNs slo, TimeNs timeout, double share) {
  impl_->set_variant(variant, slo, timeout, share);
}
void Engine::set_cascade(Cascade cascade) { impl_->set_cascade(std::move(cascade)); }
void Engine::set_pipeline(Pipeline pipeline) { impl_->set_pipeline(std::move(pipeline)); }
void Engine::set_tokens(TokenQueries tokens) { impl_->set_tokens(std::move(tokens)); }
void Engine::plan(const flow::pipeline::Plan& plan) { impl_->plan(plan); }
const PipelineTotals* Engine::pipeline() const { return impl_->roots_ ? &impl_->roots_->totals : nullptr; }
double Engine::worker_price(std::int32_t variant) const { return impl_->roots_ ? impl_->roots_->price(variant) : 0; }
bool Engine::cascade() const { return impl_->journeys_.has_value(); }
std::int32_t Engine::price() const { return impl_->journeys_ ? impl_->journeys_->price_now() : 0; }
void Engine::advance(TimeNs until) { impl_->advance(until); }
void Engine::finish() { impl_->finish(); }
TimeNs Engine::now() const { return impl_->now_; }
const Totals& Engine::totals() const { return impl_->accounts_.all.totals; }
const Histogram& Engine::latency() const { return impl_->accounts_.all.latency; }
const Totals& Engine::totals(dispatch::VariantId variant) const { return impl_->accounts_.of(variant).totals; }
const Histogram& Engine::latency(dispatch::VariantId variant) const { return impl_->accounts_.of(variant).latency; }
const std::vector<std::int64_t>& Engine::arrivals_by_length() const { return impl_->by_length_; }
const std::vector<std::int64_t>& Engine::arrivals_by_length(dispatch::VariantId variant) const {
  need(impl_->roots_ && variant < impl_->roots_->totals.by_length.size(), "variant: there is no pipeline with it");
  return impl_->roots_->totals.by_length[variant];
}
std::size_t Engine::workers() const { return impl_->fleet_.size(); }
std::size_t Engine::runtimes() const { return impl_->fleet_.runtimes(); }
std::int32_t Engine::queued() const { return impl_->scheduler_.queued(); }
std::int32_t Engine::in_flight() const { return impl_->scheduler_.in_flight(); }
const Columns& Engine::columns() const { return impl_->accounts_.columns; }
TimeNs Engine::recent_bucket(std::size_t bucket) { return Buckets<7>::lower(bucket); }

Recent Engine::take_recent(std::vector<std::uint64_t>& counts) { return impl_->accounts_.take_recent(counts); }

WorkerView Engine::worker(WorkerId worker) const {
  need(worker < impl_->fleet_.size(), "worker: there is no " + std::to_string(worker));
  const Worker& w = impl_->fleet_[worker];
  const TimeNs running = w.batch.empty() ? 0 : impl_->now_ - w.begun;
  return {w.runtime,        w.state, impl_->waiting_at(w), static_cast<std::int32_t>(w.batch.size()), w.since,
          w.busy + running, w.served};
}

RuntimeView Engine::runtime(RuntimeId runtime) const {
  impl_->fleet_.need_runtime(runtime);
  return impl_->fleet_.runtime(runtime).view;
}

}  // namespace arlo::simulate
