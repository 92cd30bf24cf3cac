// The gateway's Prometheus metrics, computed from the routers' counters on request: the data path pays nothing.
#pragma once

#include <string>
#include <string_view>

#include "gateway/desk/models.h"
#include "gateway/front/usage.h"

namespace arlo::gateway {

// The metrics in the format that an Accept header asks for: OpenMetrics 1.0 with exemplars, which are traces of
// requests that fell into a bucket; or the older text format.
struct MetricsText {
  std::string body;
  std::string_view type;  // of the content
};
MetricsText write_metrics(const Models& models, const PortUsage& usage, std::string_view accept);

}  // namespace arlo::gateway
