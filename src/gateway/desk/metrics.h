// The gateway's Prometheus metrics, made from the router's counters when they are asked for: the data path pays
// nothing.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "gateway/desk/router.h"

namespace arlo::gateway {

std::vector<prometheus::MetricFamily> collect_metrics(const Router& router);

}  // namespace arlo::gateway
