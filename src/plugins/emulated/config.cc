#include "plugins/emulated/config.h"

#include <charconv>
#include <set>
#include <stdexcept>

#include "nlohmann/json.hpp"

namespace arlo::triton {
namespace {

using nlohmann::json;

const std::set<std::string, std::less<>> kParameters = {"latency_us", "dynamic",   "jitter",        "seed",
                                                        "ids",        "mask",      "load_delay_ms", "unload_delay_ms",
                                                        "fail_load",  "memory_mb", "records"};

template <typename Number>
Number ParseNumber(const std::string& name, const std::string& text, Number minimum, Number maximum) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= minimum) || !(value <= maximum)) {
    throw std::invalid_argument("parameter " + name + ": '" + text + "' is not a number from " +
                                std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return value;
}

bool ParseBool(const std::string& name, const std::string& text) {
  if (text != "true" && text != "false") {
    throw std::invalid_argument("parameter " + name + ": '" + text + "' is neither true nor false");
  }
  return text == "true";
}

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

EmulatedConfig EmulatedConfig::FromJson(std::string_view text) {
  EmulatedConfig config;
  std::string latency;
  try {
    const json root = json::parse(text);
    if (root.value("max_batch_size", 0) < 1) {
      throw std::invalid_argument("max_batch_size must be at least 1: the first dimension is rows");
    }
    const json parameters = root.value("parameters", json::object());
    for (const auto& [name, value] : parameters.items()) {
      if (!kParameters.contains(name)) throw std::invalid_argument("unknown parameter " + name);
      const auto string = value.at("string_value").get<std::string>();
      if (name == "latency_us") latency = string;
      if (name == "dynamic") config.dynamic = ParseBool(name, string);
      if (name == "jitter") config.jitter = ParseNumber<double>(name, string, 0, 1);
      if (name == "seed") config.seed = ParseNumber<uint64_t>(name, string, 0, UINT64_MAX);
      if (name == "ids") config.ids = string;
      if (name == "mask") config.mask = string;
      if (name == "unload_delay_ms") config.unload_delay_ms = ParseNumber<int64_t>(name, string, 0, 3'600'000);
      if (name == "load_delay_ms") config.load_delay_ms = ParseNumber<int64_t>(name, string, 0, 3'600'000);
      if (name == "fail_load") config.fail_load = string;
      if (name == "memory_mb") config.memory_mb = ParseNumber<int64_t>(name, string, 0, 1'000'000'000);
    }
    if (parameters.contains("records")) {
      config.records = Records(parameters.at("records").at("string_value").get<std::string>());
    }
    for (const json& output : root.at("output")) config.outputs.push_back(ParseOutput(output, config.records));
  } catch (const json::exception& error) {
    throw std::invalid_argument(std::string("model configuration not understood: ") + error.what());
  }
  if (latency.empty()) throw std::invalid_argument("parameter latency_us is missing: points length:batch:us");
  config.latency = ParseLatency(latency);
  return config;
}

}  // namespace arlo::triton
