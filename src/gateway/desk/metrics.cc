#include "gateway/desk/metrics.h"

#include <prometheus/client_metric.h>

#include <limits>
#include <string>
#include <utility>

namespace arlo::gateway {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

class Families {
 public:
  void add(const char* name, const char* help, prometheus::MetricType type) {
    prometheus::MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    all_.push_back(std::move(family));
  }
  void value(double value, Labels labels = {}) {
    auto& family = all_.back();
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    if (family.type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    family.metric.push_back(std::move(metric));
  }
  void histogram(const LatencyBuckets& buckets) {
    prometheus::ClientMetric metric;
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i < buckets.counts().size(); ++i) {
      cumulative += buckets.counts()[i];
      const bool last = i == LatencyBuckets::kBoundsS.size();
      metric.histogram.bucket.push_back(
          {cumulative, last ? std::numeric_limits<double>::infinity() : LatencyBuckets::kBoundsS[i]});
    }
    metric.histogram.sample_count = buckets.count();
    metric.histogram.sample_sum = buckets.sum_s();
    all_.back().metric.push_back(std::move(metric));
  }
  std::vector<prometheus::MetricFamily> take() { return std::move(all_); }

 private:
  std::vector<prometheus::MetricFamily> all_;
};

}  // namespace

std::vector<prometheus::MetricFamily> collect_metrics(const Router& router) {
  using prometheus::MetricType;
  v1::Stats stats;
  router.stats(&stats);
  const auto histograms = router.histograms();
  Families out;

  out.add("arlo_rows_total", "Rows by outcome; a request of several rows counts each, a refused one counts once.",
          MetricType::Counter);
  const auto& outcomes = stats.outcomes();
  const std::pair<const char*, std::uint64_t> by_outcome[] = {
      {"on_time", outcomes.on_time()}, {"late", outcomes.late()},           {"rejected", outcomes.rejected()},
      {"expired", outcomes.expired()}, {"cancelled", outcomes.cancelled()}, {"failed", outcomes.failed()}};
  for (const auto& [name, value] : by_outcome) out.value(static_cast<double>(value), {{"outcome", name}});

  out.add("arlo_rows_overloaded_total",
          "Of the rejected and expired rows, those that came too many at a time: the queue was full, or their deadline "
          "could not be met.",
          MetricType::Counter);
  out.value(static_cast<double>(outcomes.overloaded()));

  out.add("arlo_request_duration_seconds", "From receipt to the end, of answered rows.", MetricType::Histogram);
  out.histogram(histograms.total);
  out.add("arlo_queue_duration_seconds", "From receipt to the start on a worker, of answered rows.",
          MetricType::Histogram);
  out.histogram(histograms.queue);
  out.add("arlo_execute_duration_seconds", "From the start on a worker to its answer, of answered rows.",
          MetricType::Histogram);
  out.histogram(histograms.execute);

  auto per_level = [&](const char* name, const char* help, MetricType type, auto value) {
    out.add(name, help, type);
    for (const auto& level : stats.levels()) {
      out.value(static_cast<double>(value(level)), {{"max_length", std::to_string(level.max_length())}});
    }
  };
  per_level("arlo_level_ideal_total", "Rows whose ideal level this is.", MetricType::Counter,
            [](const auto& level) { return level.ideal(); });
  per_level("arlo_level_dispatched_total", "Rows started on the level.", MetricType::Counter,
            [](const auto& level) { return level.dispatched(); });
  per_level("arlo_demotions_total", "Rows started on the level whose ideal level is shorter.", MetricType::Counter,
            [](const auto& level) { return level.demoted(); });
  per_level("arlo_level_instances", "Active instances of the level.", MetricType::Gauge,
            [](const auto& level) { return level.instances(); });

  out.add("arlo_tokens_total", "Real tokens of started rows.", MetricType::Counter);
  out.value(static_cast<double>(stats.tokens()));
  out.add("arlo_computed_tokens_total", "Tokens computed for started rows, padding included.", MetricType::Counter);
  out.value(static_cast<double>(stats.computed_tokens()));
  out.add("arlo_queued", "Rows waiting in the gateway.", MetricType::Gauge);
  out.value(stats.queued());
  out.add("arlo_parked", "Of the rows waiting, those that no present instance fits.", MetricType::Gauge);
  out.value(stats.parked());
  out.add("arlo_in_flight", "Rows at workers.", MetricType::Gauge);
  out.value(stats.in_flight());
  out.add("arlo_batches_total", "Requests sent to workers; their rows are those that were dispatched.",
          MetricType::Counter);
  out.value(static_cast<double>(stats.batches()));
  out.add("arlo_bulk_total", "Rows of the class bulk that were answered; they are in no latency.", MetricType::Counter);
  out.value(static_cast<double>(stats.bulk()));
  out.add("arlo_retries_total", "Rows sent to another instance after a worker failed them.", MetricType::Counter);
  out.value(static_cast<double>(stats.retries()));
  out.add("arlo_ejections_total", "Instances taken out of service because they failed.", MetricType::Counter);
  out.value(static_cast<double>(stats.ejections()));
  out.add("arlo_deployment_version", "Version of the deployment in force; 0: none.", MetricType::Gauge);
  out.value(static_cast<double>(stats.deployment_version()));

  auto per_instance = [&](const char* name, const char* help, MetricType type, auto value) {
    out.add(name, help, type);
    for (const auto& instance : stats.instances()) {
      out.value(static_cast<double>(value(instance)),
                {{"instance", instance.id()}, {"worker", instance.worker()}, {"runtime", instance.runtime()}});
    }
  };
  per_instance("arlo_instance_up", "1 while the instance is active.", MetricType::Gauge,
               [](const auto& instance) { return instance.state() == v1::InstanceStats::STATE_ACTIVE ? 1 : 0; });
  per_instance("arlo_instance_in_flight", "Rows at the instance.", MetricType::Gauge,
               [](const auto& instance) { return instance.in_flight(); });
  per_instance("arlo_instance_queued", "Rows bound to the instance that wait in the gateway.", MetricType::Gauge,
               [](const auto& instance) { return instance.queued(); });
  per_instance("arlo_instance_started_total", "Rows started on the instance.", MetricType::Counter,
               [](const auto& instance) { return instance.started(); });
  per_instance("arlo_instance_failed_total", "Rows that the instance's worker failed.", MetricType::Counter,
               [](const auto& instance) { return instance.failed(); });
  per_instance("arlo_instance_ejections_total", "Times the instance was taken out of service.", MetricType::Counter,
               [](const auto& instance) { return instance.ejections(); });
  per_instance("arlo_instance_busy_seconds_total", "Time with at least one row at the instance.", MetricType::Counter,
               [](const auto& instance) { return static_cast<double>(instance.busy_us()) * 1e-6; });
  return out.take();
}

}  // namespace arlo::gateway
