#include "plugins/scheduler/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/latency_table.h"
#include "plugins/parameters.h"

namespace arlo::triton {
namespace {

using nlohmann::json;

constexpr TimeNs kUs = 1'000;

std::invalid_argument Bad(const std::string& what) { return std::invalid_argument(what); }

// Triton writes 64-bit numbers as numbers or as text.
std::uint64_t Whole(const json& from, const char* name) {
  if (!from.contains(name)) return 0;
  const json& value = from.at(name);
  return value.is_string() ? std::stoull(value.get<std::string>()) : value.get<std::uint64_t>();
}

gateway::InputSpec ReadInput(const json& from, gateway::ModelSpec& model) {
  gateway::InputSpec spec;
  spec.name = from.at("name").get<std::string>();
  spec.datatype = from.at("datatype").get<std::string>();
  if (spec.datatype != "INT64" && spec.datatype != "INT32") throw Bad("input " + spec.name + " is not of integers");
  spec.item = static_cast<std::size_t>(gateway::datatype_size(spec.datatype));
  spec.pad_value = from.value("pad_value", std::int64_t{0});
  spec.optional = from.value("optional", false);
  const auto role = from.at("role").get<std::string>();
  if (role == "ids") {
    spec.role = gateway::Role::kIds;
    model.ids = model.inputs.size();
    model.vocabulary = from.value("vocabulary", std::int64_t{0});
    if (model.vocabulary == 0) model.vocabulary = gateway::all_ids(spec);
  } else if (role == "mask") {
    spec.role = gateway::Role::kMask;
    spec.pad_value = 0;
    model.mask = static_cast<std::int64_t>(model.inputs.size());
  }
  return spec;
}

gateway::OutputSpec ReadOutput(const json& from) {
  gateway::OutputSpec spec;
  spec.name = from.at("name").get<std::string>();
  spec.datatype = from.at("datatype").get<std::string>();
  const int size = gateway::datatype_size(spec.datatype);
  if (size < 0) throw Bad("output " + spec.name + " is of " + spec.datatype + ", which the plugin does not carry");
  spec.item = static_cast<std::size_t>(size);  // 0: BYTES
  spec.token_level = from.at("token_level").get<bool>();
  if (size == 0 && spec.token_level)
    throw Bad("output " + spec.name + " is token-level BYTES, which cannot be trimmed");
  spec.dims = from.at("dims").get<std::vector<std::int64_t>>();
  spec.on_request = from.value("on_request", false);
  return spec;
}

EngineSpec ReadEngine(const json& from, bool* measured) {
  EngineSpec engine;
  engine.info.name = from.at("name").get<std::string>();
  engine.info.max_length = from.at("max_length").get<std::int32_t>();
  engine.info.max_batch = from.at("max_batch").get<std::int32_t>();
  engine.info.dynamic = from.value("dynamic", false);
  auto& cost = engine.cost;
  cost.max_length = engine.info.max_length;
  cost.max_batch = engine.info.max_batch;
  cost.dynamic = engine.info.dynamic;
  for (const auto& point : from.at("latency")) {
    cost.latency.push_back({point.at("length").get<std::int32_t>(), point.at("batch").get<std::int32_t>(),
                            static_cast<TimeNs>(point.at("latency_us").get<double>() * 1000)});
  }
  if (cost.latency.empty()) {
    // Nothing but an order: the time follows the tokens, and a batch gains a little over its rows one by one.
    *measured = false;
    const TimeNs one = 500 * kUs + TimeNs{cost.max_length} * 10 * kUs;
    cost.latency.push_back({cost.max_length, 1, one});
    if (cost.max_batch > 1) cost.latency.push_back({cost.max_length, cost.max_batch, one * cost.max_batch * 9 / 10});
  }
  return engine;
}

// M of Eq. 3: rows given at once that are through within the SLO, in full batches and a last one.
std::int32_t Capacity(const dispatch::RuntimeSpec& cost, TimeNs slo) {
  std::vector<LatencyTable::Point> points;
  points.reserve(cost.latency.size());
  for (const auto& point : cost.latency) points.push_back({point.length, point.batch, point.latency});
  const LatencyTable table(std::move(points));
  const TimeNs full = std::max<TimeNs>(table.at(cost.max_length, cost.max_batch), 1);
  std::int64_t rest = 0;
  while (rest + 1 < cost.max_batch && table.at(cost.max_length, rest + 1) <= slo % full) ++rest;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(slo / full * cost.max_batch + rest, 1, 1 << 20));
}

std::set<std::string> Names(const std::string& joined) {
  std::set<std::string> names;
  for (std::size_t from = 0; from < joined.size();) {
    const std::size_t comma = std::min(joined.find(',', from), joined.size());
    if (comma > from) names.insert(joined.substr(from, comma - from));
    from = comma + 1;
  }
  return names;
}

std::vector<EngineSpec> ReadEngines(const json& manifest, const std::string& wanted, bool* measured) {
  std::vector<EngineSpec> all;
  std::vector<bool> known;
  for (const auto& runtime : manifest.at("runtimes")) {
    bool has_latency = true;
    all.push_back(ReadEngine(runtime, &has_latency));
    known.push_back(has_latency);
  }
  auto names = Names(wanted);
  const bool any_static = std::any_of(all.begin(), all.end(), [](const auto& each) { return !each.info.dynamic; });
  std::vector<EngineSpec> engines;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool taken = wanted.empty() ? !(any_static && all[i].info.dynamic) : names.erase(all[i].info.name) > 0;
    if (!taken) continue;
    *measured = *measured && known[i];
    engines.push_back(std::move(all[i]));
  }
  if (!names.empty()) throw Bad("parameter engines: arlo.json has no runtime '" + *names.begin() + "'");
  if (engines.empty()) throw Bad("arlo.json has no runtimes");
  if (engines.size() > kMostEngines) throw Bad("at most " + std::to_string(kMostEngines) + " engines serve one model");
  std::stable_sort(engines.begin(), engines.end(),
                   [](const auto& a, const auto& b) { return a.info.max_length < b.info.max_length; });
  return engines;
}

void CheckTensors(const json& config, const gateway::ModelSpec& model) {
  for (const auto& input : config.at("input")) {
    const auto name = input.at("name").get<std::string>();
    if (model.find_input(name) < 0) throw Bad("input " + name + " of config.pbtxt is not in arlo.json");
  }
  for (const auto& output : config.at("output")) {
    const auto name = output.at("name").get<std::string>();
    if (model.find_output(name) < 0) throw Bad("output " + name + " of config.pbtxt is not in arlo.json");
  }
}

}  // namespace

LogicalConfig LogicalConfig::FromJson(std::string_view config, std::string_view manifest) {
  LogicalConfig made;
  try {
    const json root = json::parse(config);
    const json built = json::parse(manifest);
    auto& model = made.model;
    model.name = root.at("name").get<std::string>();
    for (const auto& input : built.at("inputs")) model.inputs.push_back(ReadInput(input, model));
    if (model.inputs.empty() || model.inputs[model.ids].role != gateway::Role::kIds) {
      throw Bad("arlo.json has no input of role ids");
    }
    for (const auto& output : built.at("outputs")) {
      model.outputs.push_back(ReadOutput(output));
      if (model.outputs.back().on_request) model.usual &= ~(gateway::OutputSet{1} << (model.outputs.size() - 1));
    }
    if (model.outputs.empty() || model.outputs.size() > gateway::kMaxOutputs) throw Bad("arlo.json has no outputs");
    CheckTensors(root, model);
    made.max_rows = root.value("max_batch_size", std::int64_t{0});
    if (made.max_rows < 1) throw Bad("max_batch_size must be at least 1: the first dimension is rows");

    if (root.value("response_cache", json::object()).value("enable", false)) {
      throw Bad(
          "response_cache: Triton finds an answer by the bytes of the inputs, whatever their shape, so rows of "
          "other lengths would get it: leave it out");
    }
    if (root.contains("dynamic_batching")) {
      const json& batcher = root.at("dynamic_batching");
      if (Whole(batcher, "priority_levels") > 0) made.usual_priority = Whole(batcher, "default_priority_level");
    }

    Parameters parameters(root);
    const std::int64_t slo_ms = parameters.Value<std::int64_t>("slo_ms", 100, 1, 3'600'000);
    model.slo_ns = slo_ms * kMs;
    const std::int64_t timeout = std::max<std::int64_t>(10 * slo_ms, 1000);
    model.default_timeout_ns = parameters.Value<std::int64_t>("timeout_ms", timeout, 1, 36'000'000) * kMs;
    made.dispatch.policy = dispatch::parse_policy(parameters.Text("policy", "late"));
    made.dispatch.batching = dispatch::parse_batching(parameters.Text("batching", "deadline"));
    made.dispatch.max_queued = parameters.Value<std::int32_t>("max_queued", 4096, 0, 10'000'000);
    made.inflight_limit = parameters.Value<std::int32_t>("inflight_limit", 2, 1, 1024);
    made.max_attempts = parameters.Value<std::int32_t>("max_attempts", 3, 1, 100);
    made.grace_ns = parameters.Value<std::int64_t>("unavailable_grace_ms", 5000, 0, 3'600'000) * kMs;
    const std::string wanted = parameters.Text("engines", "");
    parameters.CheckNames();

    made.engines = ReadEngines(built, wanted, &made.measured);
    for (auto& engine : made.engines) engine.cost.capacity = Capacity(engine.cost, model.slo_ns);
    model.longest = made.engines.back().info.max_length;
  } catch (const json::exception& error) {
    throw Bad(std::string("config.pbtxt or arlo.json not understood: ") + error.what());
  }
  return made;
}

std::size_t LogicalConfig::Ideal(std::int32_t length) const {
  const auto at = std::lower_bound(engines.begin(), engines.end(), length,
                                   [](const auto& engine, std::int32_t l) { return engine.info.max_length < l; });
  return static_cast<std::size_t>(at - engines.begin());
}

}  // namespace arlo::triton
