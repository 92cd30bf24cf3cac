// The gateway's Prometheus metrics, computed from the routers' counters on request: the data path pays nothing.
#pragma once

#include <prometheus/metric_family.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/desk/latency_stats.h"
#include "gateway/desk/models.h"
#include "gateway/front/usage.h"

namespace arlo::gateway {

// Exemplars of histograms, by family name and index.
using Exemplars = std::map<std::pair<std::string, std::size_t>, std::vector<LatencyBuckets::Exemplar>>;

std::vector<prometheus::MetricFamily> collect_metrics(const Models& models, const PortUsage& usage,
                                                      Exemplars* exemplars = nullptr);

// Writes OpenMetrics 1.0, with exemplars: traces of requests that fell into a bucket.
std::string write_openmetrics(const std::vector<prometheus::MetricFamily>& families, const Exemplars& exemplars);

// The metrics in the format that an Accept header asks for: OpenMetrics, or the older text format.
struct MetricsText {
  std::string body;
  std::string_view type;  // of the content
};
MetricsText write_metrics(const Models& models, const PortUsage& usage, std::string_view accept);

}  // namespace arlo::gateway
