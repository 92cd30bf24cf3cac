#include "plugins/scheduler/metrics.h"

#include <cstdint>
#include <span>

#include "plugins/triton_errors.h"

namespace arlo::triton {
namespace {

struct Family {
  TRITONSERVER_MetricKind kind;
  const char* name;
  const char* help;
  std::uint64_t EngineCounts::* count;  // null: no counter
  double unit;
  std::vector<double> EngineSamples::* samples = nullptr;  // of a histogram
  std::span<const double> buckets = {};
};

constexpr TRITONSERVER_MetricKind kCounter = TRITONSERVER_METRIC_KIND_COUNTER;
constexpr TRITONSERVER_MetricKind kGauge = TRITONSERVER_METRIC_KIND_GAUGE;
constexpr TRITONSERVER_MetricKind kHistogram = TRITONSERVER_METRIC_KIND_HISTOGRAM;
constexpr double kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr double kSeconds[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
constexpr Family kFamilies[] = {
    {kCounter, "arlo_plugin_rows_total", "Rows given to an engine", &EngineCounts::rows, 1},
    {kCounter, "arlo_plugin_batches_total", "Batches given to an engine", &EngineCounts::batches, 1},
    {kCounter, "arlo_plugin_failed_batches_total", "Batches that an engine answered with an error",
     &EngineCounts::failed_batches, 1},
    {kCounter, "arlo_plugin_demoted_rows_total", "Rows of an engine that a shorter one would have taken",
     &EngineCounts::demoted_rows, 1},
    {kCounter, "arlo_plugin_tokens_total", "Tokens of the rows given to an engine", &EngineCounts::tokens, 1},
    {kCounter, "arlo_plugin_computed_tokens_total", "Tokens that an engine computed, padding included",
     &EngineCounts::computed_tokens, 1},
    {kCounter, "arlo_plugin_wait_seconds_total", "Time that rows waited before an engine got them",
     &EngineCounts::wait_us, 1e-6},
    {kHistogram, "arlo_plugin_batch_rows", "Rows of each batch given to an engine", nullptr, 1,
     &EngineSamples::batch_rows, kRows},
    {kHistogram, "arlo_plugin_row_wait_seconds", "Time that each row waited before an engine got it", nullptr, 1,
     &EngineSamples::wait_s, kSeconds},
    {kGauge, "arlo_plugin_engine_usable", "1 while the engine is loaded and not put aside", nullptr, 1},
    {kGauge, "arlo_plugin_queued_rows", "Rows that wait", nullptr, 1},
};
constexpr std::size_t kUsable = std::size(kFamilies) - 2;
constexpr std::size_t kQueued = std::size(kFamilies) - 1;

// Histograms came later than the oldest server that there is support for.
bool HaveHistograms() { return TRITONSERVER_MetricNewWithArgs != nullptr && TRITONSERVER_MetricObserve != nullptr; }

TRITONSERVER_Error* NewHistogram(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family,
                                 const TRITONSERVER_Parameter** labels, std::uint64_t count,
                                 std::span<const double> buckets) {
  TRITONSERVER_MetricArgs* args = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONSERVER_MetricArgsNew(&args));
  TRITONSERVER_Error* error = TRITONSERVER_MetricArgsSetHistogram(args, buckets.data(), buckets.size());
  if (error == nullptr) error = TRITONSERVER_MetricNewWithArgs(metric, family, labels, count, args);
  LogAndDelete(TRITONSERVER_MetricArgsDelete(args));
  return error;
}

TRITONSERVER_Metric* NewMetric(TRITONSERVER_MetricFamily* family, const Family& kind, const std::string& model,
                               const char* engine) {
  if (family == nullptr) return nullptr;
  TRITONSERVER_Parameter* const labels[] = {
      TRITONSERVER_ParameterNew("model", TRITONSERVER_PARAMETER_STRING, model.c_str()),
      engine == nullptr ? nullptr : TRITONSERVER_ParameterNew("engine", TRITONSERVER_PARAMETER_STRING, engine)};
  const TRITONSERVER_Parameter* given[] = {labels[0], labels[1]};
  TRITONSERVER_Metric* metric = nullptr;
  const std::uint64_t count = engine == nullptr ? 1 : 2;
  LogAndDelete(kind.samples == nullptr ? TRITONSERVER_MetricNew(&metric, family, given, count)
                                       : NewHistogram(&metric, family, given, count, kind.buckets));
  for (TRITONSERVER_Parameter* label : labels) {
    if (label != nullptr) TRITONSERVER_ParameterDelete(label);
  }
  return metric;
}

}  // namespace

MetricFamilies::MetricFamilies() {
  for (const Family& family : kFamilies) {
    TRITONSERVER_MetricFamily* made = nullptr;
    if (family.samples != nullptr && !HaveHistograms()) {
      made = nullptr;
    } else if (TRITONSERVER_Error* error = TRITONSERVER_MetricFamilyNew(&made, family.kind, family.name, family.help)) {
      TRITONSERVER_ErrorDelete(error);  // a server that was built without metrics
      made = nullptr;
    }
    families_.push_back(made);
  }
}

MetricFamilies::~MetricFamilies() {
  for (TRITONSERVER_MetricFamily* family : families_) {
    if (family != nullptr) LogAndDelete(TRITONSERVER_MetricFamilyDelete(family));
  }
}

ModelMetrics::ModelMetrics(const MetricFamilies& families, const LogicalConfig& config)
    : engines_(config.engines.size()) {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    for (std::size_t f = 0; f < kQueued; ++f) {
      engines_[i].push_back(
          {NewMetric(families.families_[f], kFamilies[f], config.model.name, config.engines[i].info.name.c_str()), 0});
    }
  }
  queued_.metric = NewMetric(families.families_[kQueued], kFamilies[kQueued], config.model.name, nullptr);
}

ModelMetrics::~ModelMetrics() {
  for (auto& engine : engines_) {
    for (Series& series : engine) {
      if (series.metric != nullptr) LogAndDelete(TRITONSERVER_MetricDelete(series.metric));
    }
  }
  if (queued_.metric != nullptr) LogAndDelete(TRITONSERVER_MetricDelete(queued_.metric));
}

void ModelMetrics::Add(Series& series, double value) {
  if (series.metric == nullptr || value == series.last) return;
  LogAndDelete(TRITONSERVER_MetricIncrement(series.metric, value - series.last));
  series.last = value;
}

void ModelMetrics::Observe(const Series& series, const std::vector<double>& values) {
  if (series.metric == nullptr) return;
  for (const double value : values) LogAndDelete(TRITONSERVER_MetricObserve(series.metric, value));
}

void ModelMetrics::Publish(const std::vector<EngineCounts>& counts, const std::vector<EngineSamples>& samples,
                           const std::vector<bool>& usable, double queued_rows) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::size_t f = 0; f < kUsable; ++f) {
      const Family& family = kFamilies[f];
      if (family.samples != nullptr) {
        Observe(engines_[i][f], samples[i].*family.samples);
      } else {
        Add(engines_[i][f], static_cast<double>(counts[i].*family.count) * family.unit);
      }
    }
    Add(engines_[i][kUsable], usable[i] ? 1 : 0);
  }
  Add(queued_, queued_rows);
}

}  // namespace arlo::triton
