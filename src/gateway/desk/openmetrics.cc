// The metrics format that supports exemplars; the library writes only the older one.
#include <prometheus/text_serializer.h>

#include <charconv>
#include <cmath>

#include "gateway/desk/metrics.h"

namespace arlo::gateway {
namespace {

std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::isnan(value)) return "NaN";
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out.push_back('\\');
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

std::string labels_of(const prometheus::ClientMetric& metric, const std::string& bound = {}) {
  std::string out;
  const auto add = [&](const std::string& name, const std::string& value) {
    out.append(out.empty() ? "{" : ",").append(name).append("=\"").append(escaped(value)).append("\"");
  };
  for (const auto& label : metric.label) add(label.name, label.value);
  if (!bound.empty()) add("le", bound);
  return out.empty() ? out : out + "}";
}

}  // namespace

std::string write_openmetrics(const std::vector<prometheus::MetricFamily>& families, const Exemplars& exemplars) {
  using prometheus::MetricType;
  constexpr std::string_view kTotal = "_total";
  std::string out;
  const auto line = [&](const std::string& name, const std::string& labels, double value) {
    out.append(name).append(labels).append(" ").append(number(value));
  };
  for (const auto& family : families) {
    const bool counts = family.type == MetricType::Counter;
    std::string name = family.name;
    if (counts && name.ends_with(kTotal)) name.resize(name.size() - kTotal.size());
    const char* type = counts ? "counter" : family.type == MetricType::Histogram ? "histogram" : "gauge";
    out.append("# TYPE ").append(name).append(" ").append(type).append("\n");
    out.append("# HELP ").append(name).append(" ").append(escaped(family.help)).append("\n");
    for (std::size_t i = 0; i < family.metric.size(); ++i) {
      const auto& metric = family.metric[i];
      if (family.type != MetricType::Histogram) {
        line(counts ? name + "_total" : name, labels_of(metric), counts ? metric.counter.value : metric.gauge.value);
        out += '\n';
        continue;
      }
      const auto found = exemplars.find({family.name, i});
      for (std::size_t b = 0; b < metric.histogram.bucket.size(); ++b) {
        const auto& bucket = metric.histogram.bucket[b];
        line(name + "_bucket", labels_of(metric, number(bucket.upper_bound)),
             static_cast<double>(bucket.cumulative_count));
        if (found != exemplars.end() && b < found->second.size() && !found->second[b].trace_id.empty()) {
          const auto& exemplar = found->second[b];
          out += " # {trace_id=\"" + exemplar.trace_id + "\"} " + number(exemplar.value_s) + " ";
          char at[32];
          out.append(at, std::to_chars(at, at + sizeof at, exemplar.unix_s, std::chars_format::fixed, 3).ptr);
        }
        out += '\n';
      }
      line(name + "_count", labels_of(metric), static_cast<double>(metric.histogram.sample_count));
      out += '\n';
      line(name + "_sum", labels_of(metric), metric.histogram.sample_sum);
      out += '\n';
    }
  }
  return out + "# EOF\n";
}

MetricsText write_metrics(const Models& models, const PortUsage& usage, std::string_view accept) {
  if (accept.find("application/openmetrics-text") == std::string_view::npos) {
    return {prometheus::TextSerializer().Serialize(collect_metrics(models, usage)), "text/plain; version=0.0.4"};
  }
  Exemplars exemplars;
  const auto families = collect_metrics(models, usage, &exemplars);
  return {write_openmetrics(families, exemplars), "application/openmetrics-text; version=1.0.0; charset=utf-8"};
}

}  // namespace arlo::gateway
