// Custom metrics of the server that plugin_triton.h describes: what is counted can be asked for, and the rules are
// checked.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "plugin_triton.h"

struct TRITONSERVER_MetricFamily {
  std::string name;
  TRITONSERVER_MetricKind kind;
  std::atomic<int> metrics{0};
};

struct TRITONSERVER_Metric {
  TRITONSERVER_MetricFamily* family;
  std::string series;
};

struct TRITONSERVER_Parameter {
  std::string text;
};

struct TRITONSERVER_MetricArgs {
  std::vector<double> buckets;
};

namespace {

std::mutex counted_mutex;
std::map<std::string, double> counted;

void AddTo(const std::string& series, double value) {
  const std::lock_guard lock(counted_mutex);
  counted[series] += value;
}

}  // namespace

namespace arlo::triton::test {

double Counted(const std::string& series) {
  const std::lock_guard lock(counted_mutex);
  return counted[series];
}

}  // namespace arlo::triton::test

using arlo::triton::test::Misuse;
using arlo::triton::test::outstanding;

extern "C" {

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char* name, TRITONSERVER_ParameterType, const void* value) {
  ++outstanding;
  return new TRITONSERVER_Parameter{std::string(name) + "=" + static_cast<const char*>(value)};
}
void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) {
  --outstanding;
  delete parameter;
}
TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily** family, TRITONSERVER_MetricKind kind,
                                                 const char* name, const char*) {
  ++outstanding;
  *family = new TRITONSERVER_MetricFamily{name, kind};
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) {
  if (family->metrics > 0) Misuse("a family is deleted before its metrics");
  --outstanding;
  delete family;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs** args) {
  ++outstanding;
  *args = new TRITONSERVER_MetricArgs;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs* args, const double* buckets,
                                                        uint64_t count) {
  args->buckets.assign(buckets, buckets + count);
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs* args) {
  --outstanding;
  delete args;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricNewWithArgs(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family,
                                                   const TRITONSERVER_Parameter** labels, uint64_t count,
                                                   const TRITONSERVER_MetricArgs* args) {
  if ((family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) != (args != nullptr)) Misuse("arguments of another kind");
  if (args != nullptr && !std::is_sorted(args->buckets.begin(), args->buckets.end())) Misuse("buckets out of order");
  std::string series = family->name;
  for (uint64_t i = 0; i < count; ++i) series += " " + labels[i]->text;
  ++outstanding;
  ++family->metrics;
  *metric = new TRITONSERVER_Metric{family, series};
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricNew(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family,
                                           const TRITONSERVER_Parameter** labels, uint64_t count) {
  return TRITONSERVER_MetricNewWithArgs(metric, family, labels, count, nullptr);
}
TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) {
  --outstanding;
  --metric->family->metrics;
  delete metric;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value) {
  if (metric->family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) Misuse("a histogram is not incremented");
  if (metric->family->kind == TRITONSERVER_METRIC_KIND_COUNTER && value < 0) Misuse("a counter goes back");
  AddTo(metric->series, value);
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricObserve(TRITONSERVER_Metric* metric, double value) {
  if (metric->family->kind != TRITONSERVER_METRIC_KIND_HISTOGRAM) Misuse("not a histogram");
  AddTo(metric->series + " sum", value);
  AddTo(metric->series + " count", 1);
  return nullptr;
}

}  // extern "C"
