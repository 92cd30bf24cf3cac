// The plugin's metrics, next to Triton's on Triton's port (docs/plugin.md has the list).
#ifndef ARLO_PLUGINS_SCHEDULER_METRICS_H_
#define ARLO_PLUGINS_SCHEDULER_METRICS_H_

#include <string>
#include <vector>

#include "plugins/scheduler/config.h"
#include "plugins/scheduler/desk.h"
#include "plugins/triton_api.h"

namespace arlo::triton {

// The families, which all logical models of a server share: of the backend, from its Initialize to its Finalize. A
// server without metrics has none, and nothing is counted then.
class MetricFamilies {
 public:
  MetricFamilies();
  ~MetricFamilies();
  MetricFamilies(const MetricFamilies&) = delete;
  MetricFamilies& operator=(const MetricFamilies&) = delete;

 private:
  friend class ModelMetrics;
  std::vector<TRITONSERVER_MetricFamily*> families_;  // as kFamilies in metrics.cc
};

// Of one logical model. One thread.
class ModelMetrics {
 public:
  ModelMetrics(const MetricFamilies& families, const LogicalConfig& config);
  ~ModelMetrics();
  ModelMetrics(const ModelMetrics&) = delete;
  ModelMetrics& operator=(const ModelMetrics&) = delete;

  // Publishes the values since the last call.
  void Publish(const std::vector<EngineCounts>& counts, const std::vector<EngineSamples>& samples,
               const std::vector<bool>& usable, double queued_rows);

 private:
  struct Series {
    TRITONSERVER_Metric* metric = nullptr;
    double last = 0;
  };
  static void Add(Series& series, double value);
  static void Observe(const Series& series, const std::vector<double>& values);

  std::vector<std::vector<Series>> engines_;  // by engine, by family
  Series queued_;
};

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_METRICS_H_
