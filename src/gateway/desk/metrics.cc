#include "gateway/desk/metrics.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/pipeline/pipeline.h"
#include "flow/rules/answer.h"
#include "gateway/desk/latency_stats.h"

namespace arlo::gateway {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::isnan(value)) return "NaN";
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

// Writes metrics one after the other, each with its values.
class Writer {
 public:
  explicit Writer(bool open) : open_(open) {}
  void add(std::string_view name, const char* help, bool histogram = false) {
    constexpr std::string_view kTotal = "_total";
    const bool counts = name.ends_with(kTotal);
    name_ = name;
    if (open_ && counts) name.remove_suffix(kTotal.size());
    out_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name);
    out_.append(counts ? " counter\n" : histogram ? " histogram\n" : " gauge\n");
  }
  // `model`: label of all further values; empty: none.
  void of(const std::string& model) { model_ = model; }
  void value(double value, const Labels& labels = {}) {
    sample({}, labels, value);
    out_ += '\n';
  }
  void latencies(const LatencyBuckets& buckets) {
    exemplars_ = open_ ? &buckets.exemplars() : nullptr;
    histogram(buckets.counts(), buckets.sum_s(), {}, [](std::size_t i) { return LatencyBuckets::kBoundsS[i]; });
    exemplars_ = nullptr;
  }
  // `bound`: upper bound of each bin except the last, which is open.
  void histogram(const auto& bins, double sum, const Labels& labels, auto bound) {
    std::uint64_t cumulative = 0;
    std::size_t i = 0;
    for (const std::uint64_t count : bins) {
      cumulative += count;
      const bool last = ++i == static_cast<std::size_t>(bins.size());
      auto all = labels;
      all.emplace_back("le", number(last ? std::numeric_limits<double>::infinity() : bound(i - 1)));
      sample("_bucket", all, static_cast<double>(cumulative));
      if (exemplars_ != nullptr && i <= exemplars_->size()) exemplify((*exemplars_)[i - 1]);
      out_ += '\n';
    }
    sample("_count", labels, static_cast<double>(cumulative));
    out_ += '\n';
    sample("_sum", labels, sum);
    out_ += '\n';
  }
  std::string take() { return std::move(open_ ? out_.append("# EOF\n") : out_); }

 private:
  void sample(std::string_view suffix, const Labels& labels, double value) {
    out_.append(name_).append(suffix);
    char before = '{';
    const auto label = [&](const std::string& name, std::string_view text) {
      out_.append(1, std::exchange(before, ',')).append(name).append("=\"");
      for (const char c : text) {
        if (c == '\\' || c == '"' || c == '\n') out_ += '\\';
        out_ += c == '\n' ? 'n' : c;
      }
      out_ += '"';
    };
    if (!model_.empty()) label("model", model_);
    for (const auto& [name, text] : labels) label(name, text);
    out_.append(before == ',' ? "} " : " ").append(number(value));
  }
  void exemplify(const LatencyBuckets::Exemplar& exemplar) {
    if (exemplar.trace_id.empty()) return;
    char at[32];
    const std::string_view when(at,
                                std::to_chars(at, at + sizeof at, exemplar.unix_s, std::chars_format::fixed, 3).ptr);
    out_.append(" # {trace_id=\"").append(exemplar.trace_id).append("\"} ").append(number(exemplar.value_s));
    out_.append(" ").append(when);
  }

  const bool open_;  // OpenMetrics
  std::string out_;
  std::string_view name_;
  std::string model_;
  const std::vector<LatencyBuckets::Exemplar>* exemplars_ = nullptr;
};

struct Seen {
  v1::Stats stats;
  Histograms histograms;
};

// Share of a cascade's rule-ended rows whose answer equals the last stage's, estimated from its shadow rows, with the
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

// The parts of a model's statistics, each with its labels.
constexpr auto kModel = [](const v1::Stats& stats, auto&& each) { each(stats, Labels{}); };
constexpr auto kOutcomes = [](const v1::Stats& stats, auto&& each) { each(stats.outcomes(), Labels{}); };
constexpr auto kLevels = [](const v1::Stats& stats, auto&& each) {
  for (const auto& level : stats.levels()) each(level, Labels{{"max_length", std::to_string(level.max_length())}});
};
constexpr auto kStages = [](const v1::Stats& stats, auto&& each) {
  for (const auto& stage : stats.stages()) each(stage, Labels{{"stage", stage.model()}});
};
constexpr auto kShadows = [](const v1::Stats& stats, auto&& each) {
  if (stats.has_shadows()) each(stats.shadows(), Labels{});
};
constexpr auto kCascade = [](const v1::Stats& stats, auto&& each) {
  if (stats.stages_size() > 0) each(stats, Labels{});
};
constexpr auto kExpected = [](const v1::Stats& stats, auto&& each) {
  if (stats.has_expected_accuracy()) each(stats, Labels{});
};
constexpr auto kAgreement = [](const v1::Stats& stats, auto&& each) {
  if (const auto agreement = agreement_of(stats)) each(*agreement, Labels{});
};
constexpr auto kAudit = [](const v1::Stats& stats, auto&& each) {
  if (stats.has_audit()) each(stats.audit(), Labels{});
};
constexpr auto kPipeline = [](const v1::Stats& stats, auto&& each) {
  for (const auto& stage : stats.pipeline()) each(stage, Labels{{"stage", stage.stage()}});
};
constexpr auto kVariants = [](const v1::Stats& stats, auto&& each) {
  for (const auto& stage : stats.pipeline()) {
    for (int v = 0; v < stage.variants_size(); ++v) {
      const double price = v < stage.price_size() ? stage.price(v) : 0;
      each(std::pair(stage.variants(v).answered(), price),
           Labels{{"stage", stage.stage()}, {"variant", stage.variants(v).name()}});
    }
  }
};
constexpr auto kClasses = [](const v1::Stats& stats, auto&& each) {
  for (const auto& worth : stats.worth()) each(worth, Labels{{"class", worth.of()}});
};
constexpr auto kTasks = [](const v1::Stats& stats, auto&& each) {
  for (const auto& worth : stats.by_task()) each(worth, Labels{{"task", worth.of()}});
};
constexpr auto kTenants = [](const v1::Stats& stats, auto&& each) {
  for (const auto& worth : stats.by_tenant()) each(worth, Labels{{"tenant", worth.of()}});
};
constexpr auto kInstances = [](const v1::Stats& stats, auto&& each) {
  for (const auto& instance : stats.instances()) {
    each(instance, Labels{{"instance", instance.id()}, {"worker", instance.worker()}, {"runtime", instance.runtime()}});
  }
};

Labels with(Labels labels, const char* name, std::string_view value) {
  labels.emplace_back(name, value);
  return labels;
}

// Adds one number for each part.
template <auto Parts, auto Number>
void each(Writer& out, const Seen& seen) {
  Parts(seen.stats, [&](const auto& part, const Labels& labels) {
    out.value(static_cast<double>(std::invoke(Number, part)), labels);
  });
}

// Adds a number summed over all variants of a stage.
template <auto Number>
constexpr auto kSum = [](const v1::PipelineStageStats& stage) {
  std::uint64_t sum = 0;
  for (const auto& variant : stage.variants()) sum += (variant.*Number)();
  return sum;
};

void by_outcome(Writer& out, const Seen& seen) {
  const auto& outcomes = seen.stats.outcomes();
  const std::pair<const char*, std::uint64_t> counts[] = {
      {"on_time", outcomes.on_time()}, {"late", outcomes.late()},           {"rejected", outcomes.rejected()},
      {"expired", outcomes.expired()}, {"cancelled", outcomes.cancelled()}, {"failed", outcomes.failed()}};
  for (const auto& [name, count] : counts) out.value(static_cast<double>(count), {{"outcome", name}});
}

void by_exit(Writer& out, const Seen& seen) {
  kStages(seen.stats, [&](const v1::StageStats& stage, const Labels& labels) {
    for (int reason = 0; reason < stage.exits_size(); ++reason) {
      const auto name = flow::reason_name(static_cast<flow::Reason>(reason));
      out.value(static_cast<double>(stage.exits(reason)), with(labels, "reason", name));
    }
  });
}

void by_escalation(Writer& out, const Seen& seen) {
  for (const auto& stage : seen.stats.stages()) {
    for (int to = 1; to < stage.escalations_size(); ++to) {
      if (stage.escalations(to) == 0) continue;
      out.value(static_cast<double>(stage.escalations(to)),
                {{"from", stage.model()}, {"to", seen.stats.stages(to).model()}});
    }
  }
}

void by_drop(Writer& out, const Seen& seen) {
  kPipeline(seen.stats, [&](const v1::PipelineStageStats& stage, const Labels& labels) {
    for (int reason = 0; reason < stage.dropped_size(); ++reason) {
      const auto name = flow::pipeline::drop_reason_name(static_cast<flow::pipeline::DropReason>(reason));
      out.value(static_cast<double>(stage.dropped(reason)), with(labels, "reason", name));
    }
  });
}

// Uses equal bins from 0 to 1, and none above.
void confidence(Writer& out, const Seen& seen) {
  kStages(seen.stats, [&](const v1::StageStats& stage, const Labels& labels) {
    std::vector<std::uint64_t> bins(stage.confidence().begin(), stage.confidence().end());
    bins.push_back(0);
    const auto count = static_cast<double>(stage.confidence_size());
    out.histogram(bins, stage.confidence_sum(), labels,
                  [&](std::size_t i) { return static_cast<double>(i + 1) / count; });
  });
}

// Uses bins of 0, 1, then powers of two.
void children(Writer& out, const Seen& seen) {
  kPipeline(seen.stats, [&](const v1::PipelineStageStats& stage, const Labels& labels) {
    if (stage.variants_size() == 0 || stage.variants(0).made_size() == 0) return;
    out.histogram(stage.children(), static_cast<double>(stage.children_sum()), labels,
                  [](std::size_t i) { return i == 0 ? 0.0 : static_cast<double>(std::uint64_t{1} << (i - 1)); });
  });
}

template <auto Parts>
void utility(Writer& out, const Seen& seen) {
  Parts(seen.stats, [&](const v1::Worth& worth, const Labels& labels) {
    out.value(worth.offered(), with(labels, "utility", "offered"));
    out.value(worth.earned(), with(labels, "utility", "earned"));
  });
}

template <auto Parts>
void types(Writer& out, const Seen& seen) {
  Parts(seen.stats, [&](const v1::Worth& worth, const Labels& labels) {
    const std::pair<const char*, double> counts[] = {{"right", worth.right()},
                                                     {"wrong", static_cast<double>(worth.in_time()) - worth.right()},
                                                     {"late", static_cast<double>(worth.late())},
                                                     {"evicted", static_cast<double>(worth.evicted())},
                                                     {"failed", static_cast<double>(worth.failed())}};
    for (const auto& [type, count] : counts) out.value(count, with(labels, "type", type));
  });
}

// One metric. A name in _total denotes a counter.
struct Metric {
  const char* name;
  const char* help;
  void (*add)(Writer& out, const Seen& seen);  // adds the values of one model
  bool histogram = false;
};

constexpr Metric kMetrics[] = {
    {"arlo_rows_total", "Rows by outcome; a request of several rows counts each, a refused one counts once.",
     by_outcome},
    {"arlo_rows_overloaded_total",
     "Of the rejected and expired rows, those that came too many at a time: the queue was full, or their deadline "
     "could not be met.",
     each<kOutcomes, &v1::Outcomes::overloaded>},
    {"arlo_request_duration_seconds", "From receipt to the end, of answered rows.",
     [](Writer& out, const Seen& seen) { out.latencies(seen.histograms.total); }, true},
    {"arlo_queue_duration_seconds", "From receipt to the start on a worker, of answered rows.",
     [](Writer& out, const Seen& seen) { out.latencies(seen.histograms.queue); }, true},
    {"arlo_execute_duration_seconds", "From the start on a worker to its answer, of answered rows.",
     [](Writer& out, const Seen& seen) { out.latencies(seen.histograms.execute); }, true},
    {"arlo_level_ideal_total", "Rows whose ideal level this is.", each<kLevels, &v1::LevelStats::ideal>},
    {"arlo_level_dispatched_total", "Rows started on the level.", each<kLevels, &v1::LevelStats::dispatched>},
    {"arlo_demotions_total", "Rows started on the level whose ideal level is shorter.",
     each<kLevels, &v1::LevelStats::demoted>},
    {"arlo_level_instances", "Active instances of the level.", each<kLevels, &v1::LevelStats::instances>},
    {"arlo_tokens_total", "Real tokens of started rows.", each<kModel, &v1::Stats::tokens>},
    {"arlo_computed_tokens_total", "Tokens computed for started rows, padding included.",
     each<kModel, &v1::Stats::computed_tokens>},
    {"arlo_queued", "Rows waiting in the gateway.", each<kModel, &v1::Stats::queued>},
    {"arlo_parked", "Of the rows waiting, those that no present instance fits.", each<kModel, &v1::Stats::parked>},
    {"arlo_in_flight", "Rows at workers.", each<kModel, &v1::Stats::in_flight>},
    {"arlo_batches_total", "Requests sent to workers; their rows are those that were dispatched.",
     each<kModel, &v1::Stats::batches>},
    {"arlo_bulk_total", "Rows of the class bulk that were answered; they are in no latency.",
     each<kModel, &v1::Stats::bulk>},
    {"arlo_retries_total", "Rows sent to another instance after a worker failed them.",
     each<kModel, &v1::Stats::retries>},
    {"arlo_ejections_total", "Instances taken out of service because they failed.",
     each<kModel, &v1::Stats::ejections>},
    {"arlo_deployment_version", "Version of the deployment in force; 0: none.",
     each<kModel, &v1::Stats::deployment_version>},
    {"arlo_cascade_visits_total", "Rows that a stage of a cascade answered; most go on from there.",
     each<kStages, &v1::StageStats::visits>},
    {"arlo_cascade_exits_total",
     "Rows whose answer is that of the stage, by why they ended there; from deadline on they are degraded.", by_exit},
    {"arlo_cascade_escalations_total",
     "Rows that went on from a stage; once more when the next one went and another took its place.", by_escalation},
    {"arlo_cascade_confidence", "Calibrated confidence of the stage's answers.", confidence, true},
    {"arlo_cascade_expected_accuracy",
     "Of the operating point in force, on the texts that it was tested on; absent where these had no labels.",
     each<kExpected, &v1::Stats::expected_accuracy>},
    {"arlo_cascade_agreement",
     "Of the rows that ended by rule, those whose answer is the last stage's: estimated from shadow rows, and absent "
     "without any.",
     each<kAgreement, &Agreement::share>},
    {"arlo_cascade_agreement_low", "Lower end of its 95 % interval.", each<kAgreement, &Agreement::low>},
    {"arlo_cascade_pruned_tokens_total", "Tokens left out on the way to the stage.",
     each<kStages, &v1::StageStats::pruned_tokens>},
    {"arlo_cascade_not_finite_total", "Answers of the stage with logits that are no numbers.",
     each<kStages, &v1::StageStats::not_finite>},
    {"arlo_cascade_shadow_rows_total", "Rows that ended at the stage by rule, and ran on the last one to compare.",
     each<kStages, &v1::StageStats::shadow_rows>},
    {"arlo_cascade_shadow_disagreed_total", "Of these, rows that the last stage answers otherwise.",
     each<kStages, &v1::StageStats::shadow_disagreed>},
    {"arlo_cascade_shadow_skipped_total", "Shadow rows left out while the last stage was busy.",
     each<kShadows, &v1::Audit::skipped>},
    {"arlo_cascade_shadow_failed_total", "Shadow rows that the last stage did not answer.",
     each<kShadows, &v1::Audit::failed>},
    {"arlo_cascade_drift_alarm",
     "1: early answers differ from the last stage's more often than when the cascade was searched.",
     each<kShadows, &v1::Audit::alarm>},
    {"arlo_cascade_price", "How far the rules of a cascade have given way to the load; 0: as they were searched.",
     each<kCascade, &v1::Stats::price>},
    {"arlo_pipeline_arrived_total", "Rows that came to a stage of a pipeline: clients', and those that an edge made.",
     each<kPipeline, &v1::PipelineStageStats::arrived>},
    {"arlo_pipeline_visits_total", "Rows that were sent to a variant of a stage of a pipeline.",
     each<kPipeline, &v1::PipelineStageStats::visits>},
    {"arlo_pipeline_answered_total", "Rows that the stage answered.",
     each<kPipeline, &v1::PipelineStageStats::answered>},
    {"arlo_pipeline_ends_total", "Of these, rows that ended there: parts of a client's answer.",
     each<kPipeline, &v1::PipelineStageStats::ends>},
    {"arlo_pipeline_rerouted_total", "Rows that got another variant than the router's first choice.",
     each<kPipeline, &v1::PipelineStageStats::rerouted>},
    {"arlo_pipeline_variant_answered_total", "Rows that a variant of a stage answered.",
     each<kVariants, [](const auto& part) { return part.first; }>},
    {"arlo_pipeline_price", "Utility that a worker-second of a variant costs now: 0 where there is room.",
     each<kVariants, [](const auto& part) { return part.second; }>},
    {"arlo_pipeline_children", "Rows that the edges of a stage made of one that it answered.", children, true},
    {"arlo_pipeline_dropped_total", "Rows that were given up at the stage, by why.", by_drop},
    {"arlo_pipeline_utility_total",
     "Of a pipeline's rows: utility offered, and earned, which is that of those in time times their accuracy.",
     utility<kClasses>},
    {"arlo_pipeline_rows_total",
     "A pipeline's rows by what became of them. What is right is expected, by the accuracy of what answered.",
     types<kClasses>},
    {"arlo_task_utility_total", "As arlo_pipeline_utility_total, of each task of a pipeline that several share.",
     utility<kTasks>},
    {"arlo_task_rows_total", "As arlo_pipeline_rows_total, of each task of a pipeline that several share.",
     types<kTasks>},
    {"arlo_tenant_utility_total", "As arlo_pipeline_utility_total, of each tenant of a pipeline.", utility<kTenants>},
    {"arlo_tenant_rows_total", "As arlo_pipeline_rows_total, of each tenant of a pipeline.", types<kTenants>},
    {"arlo_tenant_busy_seconds_total", "Time of workers that the rows of a pipeline's tenant took.",
     each<kTenants, &v1::Worth::busy_s>},
    {"arlo_tenant_price", "Multiple of the price that a pipeline's tenant pays: 1 within its share.",
     each<kTenants, &v1::Worth::price>},
    {"arlo_pipeline_audit_rows_total", "Rows that a pipeline's most accurate variants answered, too.",
     each<kAudit, &v1::Audit::rows>},
    {"arlo_pipeline_audit_agreed_total", "Of these, rows that got the same label.",
     each<kAudit, [](const v1::Audit& audit) { return audit.rows() - audit.disagreed(); }>},
    {"arlo_pipeline_audit_may_differ_total",
     "Of these, rows that may have got another label, by the accuracies expected of both answers.",
     each<kAudit, &v1::Audit::may_differ>},
    {"arlo_pipeline_audit_skipped_total", "Rows left out of the audit while there was no time for them.",
     each<kAudit, &v1::Audit::skipped>},
    {"arlo_pipeline_audit_alarm", "1: a pipeline's answers differ more often than their accuracies allow.",
     each<kAudit, &v1::Audit::alarm>},
    {"arlo_pipeline_shadow_rows_total", "Rows answered with fewer tokens that were asked for with all of them, too.",
     each<kPipeline, kSum<&v1::PipelineVariantStats::shadow_rows>>},
    {"arlo_pipeline_shadow_agreed_total", "Of these, rows that got the same label.",
     each<kPipeline, kSum<&v1::PipelineVariantStats::shadow_agreed>>},
    {"arlo_instance_up", "1 while the instance is active.",
     each<kInstances, [](const auto& one) { return one.state() == v1::InstanceStats::STATE_ACTIVE; }>},
    {"arlo_instance_in_flight", "Rows at the instance.", each<kInstances, &v1::InstanceStats::in_flight>},
    {"arlo_instance_queued", "Rows bound to the instance that wait in the gateway.",
     each<kInstances, &v1::InstanceStats::queued>},
    {"arlo_instance_started_total", "Rows started on the instance.", each<kInstances, &v1::InstanceStats::started>},
    {"arlo_instance_failed_total", "Rows that the instance's worker failed.",
     each<kInstances, &v1::InstanceStats::failed>},
    {"arlo_instance_ejections_total", "Times the instance was taken out of service.",
     each<kInstances, &v1::InstanceStats::ejections>},
    {"arlo_instance_busy_seconds_total", "Time with at least one row at the instance.",
     each<kInstances, [](const auto& one) { return static_cast<double>(one.busy_us()) * 1e-6; }>},
};

}  // namespace

MetricsText write_metrics(const Models& models, const PortUsage& usage, std::string_view accept) {
  std::vector<Models::Served> served = models.served();
  if (served.empty()) served.push_back({"", &models.first()});
  std::vector<Seen> all(served.size());
  std::set<const Router*> told;
  for (std::size_t i = 0; i < served.size(); ++i) {
    const auto& [name, router, stage] = served[i];
    router->stats(name, &all[i].stats);
    all[i].histograms = router->histograms(name);
    // Instances shared by several models are listed with the first of these, so that sums are right.
    if (told.insert(router).second) continue;
    all[i].stats.clear_instances();
    all[i].stats.clear_ejections();
  }
  const bool open = accept.find("application/openmetrics-text") != std::string_view::npos;
  Writer out(open);
  for (const Metric& metric : kMetrics) {
    out.add(metric.name, metric.help, metric.histogram);
    for (const Seen& seen : all) {
      out.of(seen.stats.model());
      metric.add(out, seen);
    }
  }
  out.of("");
  out.add("arlo_connections", "Connections to the data port.");
  out.value(static_cast<double>(usage.connections()));
  out.add("arlo_client_over_limit_total", "Calls and connections that ended because a client went over a limit.");
  for (const auto& [limit, count] : usage.over_limit()) out.value(static_cast<double>(count), {{"limit", limit}});
  out.add("arlo_answers_not_finite_total",
          "HTTP requests that ended in an error because the model's output was NaN or infinite.");
  out.value(static_cast<double>(usage.answers_not_finite()));
  out.add("arlo_traces_total", "Sampled requests whose spans a collector took, or that were lost.");
  out.value(static_cast<double>(usage.traces(PortUsage::Trace::kSent)), {{"outcome", "sent"}});
  out.value(static_cast<double>(usage.traces(PortUsage::Trace::kLost)), {{"outcome", "lost"}});
  return {out.take(),
          open ? "application/openmetrics-text; version=1.0.0; charset=utf-8" : "text/plain; version=0.0.4"};
}

}  // namespace arlo::gateway
