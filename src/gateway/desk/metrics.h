// The gateway's Prometheus metrics, made from the routers' counters when they are asked for: the data path pays
// nothing.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "gateway/desk/models.h"
#include "gateway/front/usage.h"

namespace arlo::gateway {

std::vector<prometheus::MetricFamily> collect_metrics(const Models& models, const PortUsage& usage);

}  // namespace arlo::gateway
