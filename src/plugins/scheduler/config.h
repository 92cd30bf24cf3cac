// The configuration of the logical model: config.pbtxt, and the manifest (arlo.json) of the engines that answer for it.
#ifndef ARLO_PLUGINS_SCHEDULER_CONFIG_H_
#define ARLO_PLUGINS_SCHEDULER_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/scheduler.h"
#include "rewrite/spec.h"

namespace arlo::triton {

// A model of the same server that is compiled for one maximum length.
struct EngineSpec {
  gateway::RuntimeInfo info;
  dispatch::RuntimeSpec cost;
};

// Parameters of config.pbtxt (all values are string_value), each with its default:
//   slo_ms                100: an answer after it is late; batches are formed so that rows are on time
//   timeout_ms            10 x slo_ms, at least 1000: the deadline of a request that sets no `timeout`
//   policy                late: how an engine is chosen, as [dispatch] policy
//   batching              deadline: who goes together, as [dispatch] batching: one, fill or deadline
//   inflight_limit        2: batches given to the engines at a time, all of them together
//   max_queued            4096: rows that wait; further ones are refused
//   max_attempts          3: executions of a row that fails alone
//   unavailable_grace_ms  5000: how long a row waits for an engine that is long enough, when none is loaded
//   engines               all static ones (all, where there is none): names joined by commas
struct LogicalConfig {
  gateway::ModelSpec model;
  std::vector<EngineSpec> engines;  // by max_length, ascending; at most kMostEngines
  dispatch::Options dispatch;
  std::int32_t inflight_limit = 2;
  std::int32_t max_attempts = 3;
  TimeNs grace_ns = 0;
  std::int64_t max_rows = 0;         // of a request
  std::uint64_t usual_priority = 0;  // a request of a higher number is bulk; 0: Triton keeps no priorities
  bool measured = true;              // false: some engine's latency is a guess

  // `config`: the model configuration as Triton gives it; `manifest`: the text of arlo.json. Throws
  // std::invalid_argument with the reason.
  static LogicalConfig FromJson(std::string_view config, std::string_view manifest);

  // The shortest engine that takes this length; engines.size(): none.
  [[nodiscard]] std::size_t Ideal(std::int32_t length) const;
};

inline constexpr std::size_t kMostEngines = 64;

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_CONFIG_H_
