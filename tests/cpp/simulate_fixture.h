// A simulation with its columns at hand, for tests. Times are small numbers of ns.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "simulate/engine.h"

namespace arlo::simulate {

inline Options options(dispatch::Policy policy = dispatch::Policy::kRs) {
  Options o;
  o.dispatch.policy = policy;
  o.slo = 1000;
  o.record = true;
  return o;
}

class Rig {
 public:
  explicit Rig(const Options& o) : engine(o) {}

  // A static runtime: `took` alone and in a full batch.
  RuntimeId runtime(std::int32_t max_length, TimeNs took, std::int32_t limit = 1, std::int32_t max_batch = 1) {
    return engine.add_runtime({.spec = {.max_length = max_length,
                                        .max_batch = max_batch,
                                        .capacity = 100,
                                        .dynamic = false,
                                        .latency = {{max_length, 1, took}, {max_length, max_batch + 1, took}}},
                               .inflight_limit = limit,
                               .truth = {}});
  }

  void arrive(TimeNs at, std::int32_t length = 10) { engine.feed({&at, 1}, {&length, 1}); }

  // A request, by number.
  [[nodiscard]] const Record& of(std::size_t number) const { return engine.accounts().records.at(number); }

  Engine engine;
};

}  // namespace arlo::simulate
