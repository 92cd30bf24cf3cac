#include "plugins/emulated/config.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "plugins/parameters.h"

namespace arlo::triton {
namespace {

using nlohmann::json;

OutputSpec ParseOutput(const json& output, const Records& records) {
  OutputSpec spec;
  spec.name = output.at("name").get<std::string>();
  if (output.at("data_type").get<std::string>() != "TYPE_FP32") {
    throw std::invalid_argument("output " + spec.name + ": the emulated engine answers in TYPE_FP32 only");
  }
  const auto dims = output.at("dims").get<std::vector<int64_t>>();
  if (records.count() > 0 && (spec.name == "logits" || spec.name == "importance")) {
    spec.token_level = spec.name == "importance";
    spec.dim = spec.token_level ? 0 : records.labels();
    if (dims.size() != 1 || (!spec.token_level && dims.front() != spec.dim)) {
      throw std::invalid_argument("output " + spec.name + ": dims must be [labels], as recorded, or [tokens]");
    }
    return spec;
  }
  if ((dims.size() != 1 && dims.size() != 2) || dims.back() < 1) {
    throw std::invalid_argument("output " + spec.name + ": dims must be [dim] or [tokens, dim] with a fixed dim");
  }
  spec.token_level = dims.size() == 2;
  spec.dim = dims.back();
  return spec;
}

}  // namespace

LatencyTable ParseLatency(std::string_view text) {
  constexpr std::int64_t kMost[] = {1 << 20, 1 << 16, 3'600'000'000};  // tokens, rows of a batch, an hour
  std::vector<LatencyTable::Point> points;
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view point = text.substr(0, comma);
    if (more) text.remove_prefix(comma + 1);
    std::int64_t number[3] = {};
    std::string_view left = point;
    for (int i = 0; i < 3; ++i) {
      const std::size_t colon = i < 2 ? left.find(':') : left.size();
      const auto value = ParseNumber<std::int64_t>(left.substr(0, colon), i < 2 ? 1 : 0, kMost[i]);
      if (colon == std::string_view::npos || !value) {
        throw std::invalid_argument("latency_us: '" + std::string(point) +
                                    "' is not length:batch:us with length and batch at least 1 and us at least 0");
      }
      number[i] = *value;
      left.remove_prefix(std::min(colon + 1, left.size()));
    }
    if (!seen.emplace(number[0], number[1]).second) {
      throw std::invalid_argument("latency_us: '" + std::string(point) +
                                  "' is a second point for its length and batch");
    }
    points.push_back({number[0], number[1], number[2] * 1000});
  }
  return LatencyTable(std::move(points));
}

EmulatedConfig EmulatedConfig::FromJson(std::string_view text) {
  EmulatedConfig config;
  std::string latency;
  try {
    const json root = json::parse(text);
    if (root.value("max_batch_size", 0) < 1) {
      throw std::invalid_argument("max_batch_size must be at least 1: the first dimension is rows");
    }
    Parameters parameters(root);
    latency = parameters.Text("latency_us", "");
    config.dynamic = parameters.Flag("dynamic");
    config.jitter = parameters.Value<double>("jitter", 0, 0, 1);
    config.seed = parameters.Value<std::uint64_t>("seed", 0, 0, UINT64_MAX);
    config.ids = parameters.Text("ids", config.ids);
    config.mask = parameters.Text("mask", config.mask);
    config.unload_delay_ms = parameters.Value<std::int64_t>("unload_delay_ms", 0, 0, 3'600'000);
    config.load_delay_ms = parameters.Value<std::int64_t>("load_delay_ms", 0, 0, 3'600'000);
    config.fail_load = parameters.Text("fail_load", "");
    config.memory_mb = parameters.Value<std::int64_t>("memory_mb", 0, 0, 1'000'000'000);
    const std::string records = parameters.Text("records", "");
    parameters.CheckNames();
    if (!records.empty()) config.records = Records(records);
    for (const json& output : root.at("output")) config.outputs.push_back(ParseOutput(output, config.records));
  } catch (const json::exception& error) {
    throw std::invalid_argument(std::string("model configuration not understood: ") + error.what());
  }
  if (latency.empty()) throw std::invalid_argument("parameter latency_us is missing: points length:batch:us");
  config.latency = ParseLatency(latency);
  return config;
}

}  // namespace arlo::triton
