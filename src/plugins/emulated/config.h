#ifndef ARLO_TRITON_EMULATED_CONFIG_H_
#define ARLO_TRITON_EMULATED_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/latency_table.h"
#include "plugins/emulated/records.h"

namespace arlo::triton {

// An output of the emulated model: FP32 [rows, tokens, dim] when token_level, else FP32 [rows, dim]. With records,
// `logits` and `importance` (FP32 [rows, tokens]) are theirs.
struct OutputSpec {
  std::string name;
  bool token_level = false;
  int64_t dim = 0;
};

// Parses points `length:batch:us` joined by commas, for example "64:1:1150,512:1:4860". Throws std::invalid_argument
// with the reason for other text.
LatencyTable ParseLatency(std::string_view text);

// The configuration of an emulated runtime in config.pbtxt. Parameters (all values are string_value):
//   latency_us     the latency profile, see ParseLatency; required
//   dynamic        "true": the time depends on the longest row width of the batch; else on the longest length alone
//   jitter         a fraction J: each time is multiplied by a factor drawn evenly from [1 - J, 1 + J]; default 0
//   seed           of the jitter; default 0
//   ids, mask      names of the input tensors; default "input_ids" and "attention_mask" (mask may be absent)
//   load_delay_ms  how long loading takes, for tests of slow loads; default 0
//   unload_delay_ms how long unloading takes, for tests of one that does not end; default 0
//   fail_load      a message: loading fails with it
//   records        a file of a real model's answers, see Records; with it the outputs are logits and importance
//   memory_mb      device memory that the runtime takes while it is loaded, see EmulatedDevice; default 0
struct EmulatedConfig {
  LatencyTable latency;
  bool dynamic = false;
  double jitter = 0;
  uint64_t seed = 0;
  std::string ids = "input_ids";
  std::string mask = "attention_mask";
  int64_t load_delay_ms = 0;
  int64_t unload_delay_ms = 0;
  std::string fail_load;
  int64_t memory_mb = 0;
  Records records;
  std::vector<OutputSpec> outputs;

  // Parses the model configuration as Triton gives it (JSON). Throws std::invalid_argument with the reason.
  static EmulatedConfig FromJson(std::string_view json);
};

}  // namespace arlo::triton

#endif  // ARLO_TRITON_EMULATED_CONFIG_H_
