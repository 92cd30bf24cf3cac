#include "gateway/desk/metrics.h"

#include <prometheus/client_metric.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "flow/cascade/cascade.h"
#include "flow/pipeline/pipeline.h"

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
  // `model`: of which all further values are; empty: of none.
  void of(const std::string& model) { model_ = model; }
  void value(double value, const Labels& labels = {}) {
    auto& family = all_.back();
    prometheus::ClientMetric metric = labelled(labels);
    if (family.type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    family.metric.push_back(std::move(metric));
  }
  explicit Families(Exemplars* exemplars) : exemplars_(exemplars) {}
  void histogram(const LatencyBuckets& buckets) {
    prometheus::ClientMetric metric = labelled({});
    if (exemplars_ != nullptr) (*exemplars_)[{all_.back().name, all_.back().metric.size()}] = buckets.exemplars();
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
  // Of equal bins from 0 to 1.
  void shares(const google::protobuf::RepeatedField<std::uint64_t>& bins, double sum, const Labels& labels) {
    prometheus::ClientMetric metric = labelled(labels);
    std::uint64_t cumulative = 0;
    for (int i = 0; i < bins.size(); ++i) {
      cumulative += bins[i];
      metric.histogram.bucket.push_back({cumulative, static_cast<double>(i + 1) / bins.size()});
    }
    metric.histogram.bucket.push_back({cumulative, std::numeric_limits<double>::infinity()});
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = sum;
    all_.back().metric.push_back(std::move(metric));
  }
  // Of counts: 0, 1, then powers of two.
  void counts(const google::protobuf::RepeatedField<std::uint64_t>& bins, std::uint64_t sum, const Labels& labels) {
    prometheus::ClientMetric metric = labelled(labels);
    std::uint64_t cumulative = 0;
    for (int i = 0; i < bins.size(); ++i) {
      cumulative += bins[i];
      const bool last = i + 1 == bins.size();
      const double bound = last     ? std::numeric_limits<double>::infinity()
                           : i == 0 ? 0.0
                                    : static_cast<double>(std::uint64_t{1} << (i - 1));
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = static_cast<double>(sum);
    all_.back().metric.push_back(std::move(metric));
  }
  std::vector<prometheus::MetricFamily> take() { return std::move(all_); }

 private:
  [[nodiscard]] prometheus::ClientMetric labelled(const Labels& labels) const {
    prometheus::ClientMetric metric;
    if (!model_.empty()) metric.label.push_back({"model", model_});
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    return metric;
  }

  std::vector<prometheus::MetricFamily> all_;
  std::string model_;
  Exemplars* exemplars_;
};

struct Seen {
  v1::Stats stats;
  Histograms histograms;
};

// Of the rows of a cascade that ended by its rules, those whose answer is the last stage's: by its shadow rows, and the
// lower end of the 95 % interval (Wilson, 1927). None without shadow rows.
struct Agreement {
  double share = 0, low = 0;
};

std::optional<Agreement> agreement_of(const v1::Stats& stats) {
  const auto& shadows = stats.shadows();
  double early = 0;
  double last = 0;
  for (const auto& stage : stats.stages()) {
    early += static_cast<double>(stage.exits(static_cast<int>(flow::Reason::kConfident)));
    last += static_cast<double>(stage.exits(static_cast<int>(flow::Reason::kFinal)));
  }
  if (shadows.rows() == 0 || early <= 0) return {};
  constexpr double kZ = 1.96;
  const auto rows = static_cast<double>(shadows.rows());
  const double differ = static_cast<double>(shadows.disagreed()) / rows;
  const double middle = differ + kZ * kZ / (2 * rows);
  const double half = kZ * std::sqrt((differ * (1 - differ) + kZ * kZ / (4 * rows)) / rows);
  const double most = (middle + half) / (1 + kZ * kZ / rows);
  const double share = early / (early + last);
  return Agreement{1 - share * differ, 1 - share * most};
}

}  // namespace

std::vector<prometheus::MetricFamily> collect_metrics(const Models& models, const PortUsage& usage,
                                                      Exemplars* exemplars) {
  using prometheus::MetricType;
  std::vector<Models::Served> served = models.served();
  if (served.empty()) served.push_back({"", &models.first()});
  std::vector<Seen> all(served.size());
  std::set<const Router*> told;
  for (std::size_t i = 0; i < served.size(); ++i) {
    const auto& [name, router, stage] = served[i];
    router->stats(name, &all[i].stats);
    all[i].histograms = router->histograms(name);
    // Instances that several models share stand with the first of these, so that sums are right.
    if (told.insert(router).second) continue;
    all[i].stats.clear_instances();
    all[i].stats.clear_ejections();
  }
  Families out(exemplars);
  // A family with a value, or several, of each model.
  auto family = [&](const char* name, const char* help, MetricType type, auto add_values) {
    out.add(name, help, type);
    for (const auto& seen : all) {
      out.of(seen.stats.model());
      add_values(seen);
    }
  };
  auto number = [&](const char* name, const char* help, MetricType type, auto value) {
    family(name, help, type, [&](const Seen& seen) { out.value(static_cast<double>(value(seen.stats))); });
  };

  family("arlo_rows_total", "Rows by outcome; a request of several rows counts each, a refused one counts once.",
         MetricType::Counter, [&](const Seen& seen) {
           const auto& outcomes = seen.stats.outcomes();
           const std::pair<const char*, std::uint64_t> by_outcome[] = {
               {"on_time", outcomes.on_time()}, {"late", outcomes.late()},           {"rejected", outcomes.rejected()},
               {"expired", outcomes.expired()}, {"cancelled", outcomes.cancelled()}, {"failed", outcomes.failed()}};
           for (const auto& [name, value] : by_outcome) out.value(static_cast<double>(value), {{"outcome", name}});
         });
  number("arlo_rows_overloaded_total",
         "Of the rejected and expired rows, those that came too many at a time: the queue was full, or their deadline "
         "could not be met.",
         MetricType::Counter, [](const v1::Stats& stats) { return stats.outcomes().overloaded(); });

  family("arlo_request_duration_seconds", "From receipt to the end, of answered rows.", MetricType::Histogram,
         [&](const Seen& seen) { out.histogram(seen.histograms.total); });
  family("arlo_queue_duration_seconds", "From receipt to the start on a worker, of answered rows.",
         MetricType::Histogram, [&](const Seen& seen) { out.histogram(seen.histograms.queue); });
  family("arlo_execute_duration_seconds", "From the start on a worker to its answer, of answered rows.",
         MetricType::Histogram, [&](const Seen& seen) { out.histogram(seen.histograms.execute); });

  auto per_level = [&](const char* name, const char* help, MetricType type, auto value) {
    family(name, help, type, [&](const Seen& seen) {
      for (const auto& level : seen.stats.levels()) {
        out.value(static_cast<double>(value(level)), {{"max_length", std::to_string(level.max_length())}});
      }
    });
  };
  per_level("arlo_level_ideal_total", "Rows whose ideal level this is.", MetricType::Counter,
            [](const auto& level) { return level.ideal(); });
  per_level("arlo_level_dispatched_total", "Rows started on the level.", MetricType::Counter,
            [](const auto& level) { return level.dispatched(); });
  per_level("arlo_demotions_total", "Rows started on the level whose ideal level is shorter.", MetricType::Counter,
            [](const auto& level) { return level.demoted(); });
  per_level("arlo_level_instances", "Active instances of the level.", MetricType::Gauge,
            [](const auto& level) { return level.instances(); });

  number("arlo_tokens_total", "Real tokens of started rows.", MetricType::Counter,
         [](const v1::Stats& stats) { return stats.tokens(); });
  number("arlo_computed_tokens_total", "Tokens computed for started rows, padding included.", MetricType::Counter,
         [](const v1::Stats& stats) { return stats.computed_tokens(); });
  number("arlo_queued", "Rows waiting in the gateway.", MetricType::Gauge,
         [](const v1::Stats& stats) { return stats.queued(); });
  number("arlo_parked", "Of the rows waiting, those that no present instance fits.", MetricType::Gauge,
         [](const v1::Stats& stats) { return stats.parked(); });
  number("arlo_in_flight", "Rows at workers.", MetricType::Gauge,
         [](const v1::Stats& stats) { return stats.in_flight(); });
  number("arlo_batches_total", "Requests sent to workers; their rows are those that were dispatched.",
         MetricType::Counter, [](const v1::Stats& stats) { return stats.batches(); });
  number("arlo_bulk_total", "Rows of the class bulk that were answered; they are in no latency.", MetricType::Counter,
         [](const v1::Stats& stats) { return stats.bulk(); });
  number("arlo_retries_total", "Rows sent to another instance after a worker failed them.", MetricType::Counter,
         [](const v1::Stats& stats) { return stats.retries(); });
  number("arlo_ejections_total", "Instances taken out of service because they failed.", MetricType::Counter,
         [](const v1::Stats& stats) { return stats.ejections(); });
  number("arlo_deployment_version", "Version of the deployment in force; 0: none.", MetricType::Gauge,
         [](const v1::Stats& stats) { return stats.deployment_version(); });

  auto per_stage = [&](const char* name, const char* help, MetricType type, auto add_values) {
    family(name, help, type, [&](const Seen& seen) {
      for (const auto& stage : seen.stats.stages()) add_values(stage);
    });
  };
  per_stage("arlo_cascade_visits_total", "Rows that a stage of a cascade answered; most go on from there.",
            MetricType::Counter,
            [&](const auto& stage) { out.value(static_cast<double>(stage.visits()), {{"stage", stage.model()}}); });
  per_stage("arlo_cascade_exits_total",
            "Rows whose answer is that of the stage, by why they ended there; from deadline on they are degraded.",
            MetricType::Counter, [&](const auto& stage) {
              for (int reason = 0; reason < stage.exits_size(); ++reason) {
                out.value(static_cast<double>(stage.exits(reason)),
                          {{"stage", stage.model()},
                           {"reason", std::string(flow::reason_name(static_cast<flow::Reason>(reason)))}});
              }
            });
  family("arlo_cascade_escalations_total",
         "Rows that went on from a stage; once more when the next one went and another took its place.",
         MetricType::Counter, [&](const Seen& seen) {
           const auto& stages = seen.stats.stages();
           for (const auto& stage : stages) {
             for (int to = 0; to < stage.escalations_size(); ++to) {
               if (to == 0 || stage.escalations(to) == 0) continue;
               out.value(static_cast<double>(stage.escalations(to)),
                         {{"from", stage.model()}, {"to", stages[to].model()}});
             }
           }
         });
  per_stage(
      "arlo_cascade_confidence", "Calibrated confidence of the stage's answers.", MetricType::Histogram,
      [&](const auto& stage) { out.shares(stage.confidence(), stage.confidence_sum(), {{"stage", stage.model()}}); });
  family("arlo_cascade_expected_accuracy",
         "Of the operating point in force, on the texts that it was tested on; absent where these had no labels.",
         MetricType::Gauge, [&](const Seen& seen) {
           if (seen.stats.has_expected_accuracy()) out.value(seen.stats.expected_accuracy());
         });
  family(
      "arlo_cascade_agreement",
      "Of the rows that ended by rule, those whose answer is the last stage's: estimated from shadow rows, and absent "
      "without any.",
      MetricType::Gauge, [&](const Seen& seen) {
        if (const auto agreement = agreement_of(seen.stats)) out.value(agreement->share);
      });
  family("arlo_cascade_agreement_low", "Lower end of its 95 % interval.", MetricType::Gauge, [&](const Seen& seen) {
    if (const auto agreement = agreement_of(seen.stats)) out.value(agreement->low);
  });
  per_stage(
      "arlo_cascade_pruned_tokens_total", "Tokens left out on the way to the stage.", MetricType::Counter,
      [&](const auto& stage) { out.value(static_cast<double>(stage.pruned_tokens()), {{"stage", stage.model()}}); });
  per_stage("arlo_cascade_not_finite_total", "Answers of the stage with logits that are no numbers.",
            MetricType::Counter,
            [&](const auto& stage) { out.value(static_cast<double>(stage.not_finite()), {{"stage", stage.model()}}); });
  per_stage(
      "arlo_cascade_shadow_rows_total", "Rows that ended at the stage by rule, and ran on the last one to compare.",
      MetricType::Counter,
      [&](const auto& stage) { out.value(static_cast<double>(stage.shadow_rows()), {{"stage", stage.model()}}); });
  per_stage("arlo_cascade_shadow_disagreed_total", "Of these, rows that the last stage answers otherwise.",
            MetricType::Counter, [&](const auto& stage) {
              out.value(static_cast<double>(stage.shadow_disagreed()), {{"stage", stage.model()}});
            });
  auto of_shadows = [&](const char* name, const char* help, MetricType type, auto value) {
    family(name, help, type, [&](const Seen& seen) {
      if (seen.stats.has_shadows()) out.value(static_cast<double>(value(seen.stats.shadows())));
    });
  };
  of_shadows("arlo_cascade_shadow_skipped_total", "Shadow rows left out while the last stage was busy.",
             MetricType::Counter, [](const v1::Shadows& shadows) { return shadows.skipped(); });
  of_shadows("arlo_cascade_shadow_failed_total", "Shadow rows that the last stage did not answer.", MetricType::Counter,
             [](const v1::Shadows& shadows) { return shadows.failed(); });
  of_shadows("arlo_cascade_drift_alarm",
             "1: early answers differ from the last stage's more often than when the cascade was searched.",
             MetricType::Gauge, [](const v1::Shadows& shadows) { return shadows.alarm() ? 1 : 0; });
  family("arlo_cascade_price", "How far the rules of a cascade have given way to the load; 0: as they were searched.",
         MetricType::Gauge, [&](const Seen& seen) {
           if (seen.stats.stages_size() > 0) out.value(seen.stats.price());
         });

  auto per_flow_stage = [&](const char* name, const char* help, auto value) {
    family(name, help, MetricType::Counter, [&](const Seen& seen) {
      for (const auto& stage : seen.stats.pipeline()) {
        out.value(static_cast<double>(value(stage)), {{"stage", stage.stage()}});
      }
    });
  };
  per_flow_stage("arlo_pipeline_arrived_total",
                 "Rows that came to a stage of a pipeline: clients', and those that an edge made.",
                 [](const auto& stage) { return stage.arrived(); });
  per_flow_stage("arlo_pipeline_visits_total", "Rows that were sent to a variant of a stage of a pipeline.",
                 [](const auto& stage) { return stage.visits(); });
  per_flow_stage("arlo_pipeline_answered_total", "Rows that the stage answered.",
                 [](const auto& stage) { return stage.answered(); });
  per_flow_stage("arlo_pipeline_ends_total", "Of these, rows that ended there: parts of a client's answer.",
                 [](const auto& stage) { return stage.ends(); });
  per_flow_stage("arlo_pipeline_rerouted_total", "Rows that got another variant than the router's first choice.",
                 [](const auto& stage) { return stage.rerouted(); });
  const auto by_flow_variant = [&](const char* name, const char* help, MetricType type, auto value) {
    family(name, help, type, [&](const Seen& seen) {
      for (const auto& stage : seen.stats.pipeline()) {
        for (int v = 0; v < stage.variants_size(); ++v) {
          out.value(value(stage, v), {{"stage", stage.stage()}, {"variant", stage.variants(v).name()}});
        }
      }
    });
  };
  by_flow_variant("arlo_pipeline_variant_answered_total", "Rows that a variant of a stage answered.",
                  MetricType::Counter,
                  [](const auto& stage, int v) { return static_cast<double>(stage.variants(v).answered()); });
  by_flow_variant("arlo_pipeline_price", "Utility that a worker-second of a variant costs now: 0 where there is room.",
                  MetricType::Gauge,
                  [](const auto& stage, int v) { return v < stage.price_size() ? stage.price(v) : 0; });
  family("arlo_pipeline_children", "Rows that the edges of a stage made of one that it answered.",
         MetricType::Histogram, [&](const Seen& seen) {
           for (const auto& stage : seen.stats.pipeline()) {
             const bool goes = stage.variants_size() > 0 && stage.variants(0).made_size() > 0;
             if (goes) out.counts(stage.children(), stage.children_sum(), {{"stage", stage.stage()}});
           }
         });
  family("arlo_pipeline_dropped_total", "Rows that were given up at the stage, by why.", MetricType::Counter,
         [&](const Seen& seen) {
           for (const auto& stage : seen.stats.pipeline()) {
             for (int reason = 0; reason < stage.dropped_size(); ++reason) {
               const auto name = flow::pipeline::drop_reason_name(static_cast<flow::pipeline::DropReason>(reason));
               out.value(static_cast<double>(stage.dropped(reason)),
                         {{"stage", stage.stage()}, {"reason", std::string(name)}});
             }
           }
         });
  const auto add_utility = [&](const char* label, const auto& all_worth) {
    for (const v1::Worth& worth : all_worth) {
      out.value(worth.offered(), {{label, worth.of()}, {"utility", "offered"}});
      out.value(worth.earned(), {{label, worth.of()}, {"utility", "earned"}});
    }
  };
  const auto add_types = [&](const char* label, const auto& all_worth) {
    for (const v1::Worth& worth : all_worth) {
      const auto row = [&](const char* type, double count) { out.value(count, {{label, worth.of()}, {"type", type}}); };
      row("right", worth.right());
      row("wrong", static_cast<double>(worth.in_time()) - worth.right());
      row("late", static_cast<double>(worth.late()));
      row("evicted", static_cast<double>(worth.evicted()));
      row("failed", static_cast<double>(worth.failed()));
    }
  };
  family("arlo_pipeline_utility_total",
         "Of a pipeline's rows: utility offered, and earned, which is that of those in time times their accuracy.",
         MetricType::Counter, [&](const Seen& seen) { add_utility("class", seen.stats.worth()); });
  family("arlo_pipeline_rows_total",
         "A pipeline's rows by what became of them. What is right is expected, by the accuracy of what answered.",
         MetricType::Counter, [&](const Seen& seen) { add_types("class", seen.stats.worth()); });
  family("arlo_task_utility_total", "As arlo_pipeline_utility_total, of each task of a pipeline that several share.",
         MetricType::Counter, [&](const Seen& seen) { add_utility("task", seen.stats.by_task()); });
  family("arlo_task_rows_total", "As arlo_pipeline_rows_total, of each task of a pipeline that several share.",
         MetricType::Counter, [&](const Seen& seen) { add_types("task", seen.stats.by_task()); });
  family("arlo_tenant_utility_total", "As arlo_pipeline_utility_total, of each tenant of a pipeline.",
         MetricType::Counter, [&](const Seen& seen) { add_utility("tenant", seen.stats.by_tenant()); });
  family("arlo_tenant_rows_total", "As arlo_pipeline_rows_total, of each tenant of a pipeline.", MetricType::Counter,
         [&](const Seen& seen) { add_types("tenant", seen.stats.by_tenant()); });
  family("arlo_tenant_busy_seconds_total", "Time of workers that the rows of a pipeline's tenant took.",
         MetricType::Counter, [&](const Seen& seen) {
           for (const auto& worth : seen.stats.by_tenant()) out.value(worth.busy_s(), {{"tenant", worth.of()}});
         });
  family("arlo_tenant_price", "Multiple of the price that a pipeline's tenant pays: 1 within its share.",
         MetricType::Gauge, [&](const Seen& seen) {
           for (const auto& worth : seen.stats.by_tenant()) out.value(worth.price(), {{"tenant", worth.of()}});
         });
  auto of_audit = [&](const char* name, const char* help, MetricType type, auto value) {
    family(name, help, type, [&](const Seen& seen) {
      if (seen.stats.has_audit()) out.value(static_cast<double>(value(seen.stats.audit())));
    });
  };
  of_audit("arlo_pipeline_audit_rows_total", "Rows that a pipeline's most accurate variants answered, too.",
           MetricType::Counter, [](const v1::PipelineAudit& audit) { return audit.rows(); });
  of_audit("arlo_pipeline_audit_agreed_total", "Of these, rows that got the same label.", MetricType::Counter,
           [](const v1::PipelineAudit& audit) { return audit.agreed(); });
  of_audit("arlo_pipeline_audit_may_differ_total",
           "Of these, rows that may have got another label, by the accuracies expected of both answers.",
           MetricType::Counter, [](const v1::PipelineAudit& audit) { return audit.may_differ(); });
  of_audit("arlo_pipeline_audit_skipped_total", "Rows left out of the audit while there was no time for them.",
           MetricType::Counter, [](const v1::PipelineAudit& audit) { return audit.skipped(); });
  of_audit("arlo_pipeline_audit_alarm", "1: a pipeline's answers differ more often than their accuracies allow.",
           MetricType::Gauge, [](const v1::PipelineAudit& audit) { return audit.alarm() ? 1 : 0; });
  auto of_shadowed = [&](const char* name, const char* help, auto value) {
    family(name, help, MetricType::Counter, [&](const Seen& seen) {
      for (const auto& stage : seen.stats.pipeline()) {
        std::uint64_t sum = 0;
        for (const auto& variant : stage.variants()) sum += value(variant);
        out.value(static_cast<double>(sum), {{"stage", stage.stage()}});
      }
    });
  };
  of_shadowed("arlo_pipeline_shadow_rows_total",
              "Rows answered with fewer tokens that were asked for with all of them, too.",
              [](const auto& variant) { return variant.shadow_rows(); });
  of_shadowed("arlo_pipeline_shadow_agreed_total", "Of these, rows that got the same label.",
              [](const auto& variant) { return variant.shadow_agreed(); });

  auto per_instance = [&](const char* name, const char* help, MetricType type, auto value) {
    family(name, help, type, [&](const Seen& seen) {
      for (const auto& instance : seen.stats.instances()) {
        out.value(static_cast<double>(value(instance)),
                  {{"instance", instance.id()}, {"worker", instance.worker()}, {"runtime", instance.runtime()}});
      }
    });
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

  out.of("");
  out.add("arlo_connections", "Connections to the data port.", MetricType::Gauge);
  out.value(static_cast<double>(usage.connections()));
  out.add("arlo_client_over_limit_total", "Calls and connections that ended because a client went over a limit.",
          MetricType::Counter);
  for (const auto& [limit, count] : usage.over_limit()) out.value(static_cast<double>(count), {{"limit", limit}});
  out.add("arlo_answers_not_finite_total",
          "HTTP requests that ended in an error because the model's output was NaN or infinite.", MetricType::Counter);
  out.value(static_cast<double>(usage.answers_not_finite()));
  out.add("arlo_traces_total", "Sampled requests whose spans a collector took, or that were lost.",
          MetricType::Counter);
  out.value(static_cast<double>(usage.traces(PortUsage::Trace::kSent)), {{"outcome", "sent"}});
  out.value(static_cast<double>(usage.traces(PortUsage::Trace::kLost)), {{"outcome", "lost"}});
  return out.take();
}

}  // namespace arlo::gateway
