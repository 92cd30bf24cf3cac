// Counters of the rows of cascades and pipelines: outcomes at each stage, and for pipelines their worth by class, task
// and tenant. Not synchronised: the router's lock covers it.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <array>
#include <cstdint>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/cascade/spec.h"
#include "flow/pipeline/pipeline.h"
#include "gateway/desk/call.h"

namespace arlo::gateway {

struct FlowState;

// Counts of a cascade's rows at one of its stages (StageStats).
struct StageCounts {
  static constexpr std::size_t kBins = 20;

  void visited(double confidence, bool finite);

  std::uint64_t visits = 0, not_finite = 0, pruned_tokens = 0, shadow_rows = 0, shadow_disagreed = 0;
  std::array<std::uint64_t, flow::kReasons> exits{};
  std::array<std::uint64_t, flow::kMaxStages> escalations{};
  std::array<std::uint64_t, kBins> confidence{};
  double confidence_sum = 0;
};

// Counts of a pipeline's variant.
struct FlowVariantCounts {
  std::uint64_t answered = 0, ended = 0;
  std::uint64_t shadow_rows = 0, shadow_agreed = 0;
  std::vector<std::uint64_t> made;  // children of its rows, by edge of its stage; nothing at exits
};

// Counts of the rows of a class, each once (arlo.v1.Worth).
struct FlowWorth {
  double offered = 0, earned = 0, right = 0;
  double busy_s = 0;  // worker seconds; tenants only
  std::uint64_t in_time = 0, late = 0, evicted = 0, failed = 0;
};

// Counts of a pipeline's stage (v1::PipelineStageStats).
struct FlowStageCounts {
  std::uint64_t arrived = 0, visits = 0, answered = 0, ends = 0, rerouted = 0;
  std::vector<FlowVariantCounts> variants;
  std::array<std::uint64_t, 13>
      children{};  // answered rows by their number of children: 0, 1, 2, 4, .. 1024 at most, more
  std::uint64_t children_sum = 0;
  std::array<std::uint64_t, flow::pipeline::kDropReasons> dropped{};
};

class FlowBooks {
 public:
  // A pipeline comes into force; `others`: its tenants differ from the previous ones.
  void begin(const ModelSpec& pipeline, bool others);
  [[nodiscard]] StageCounts& stage(const ModelSpec& cascade, std::int32_t stage) {
    return at(cascade).cascade.at(static_cast<std::size_t>(stage));
  }
  [[nodiscard]] std::vector<FlowStageCounts>& stages(const ModelSpec& pipeline) { return at(pipeline).pipeline; }
  // Answers of this stage, or of one of its variants, were compared with better ones.
  void audited(const ModelSpec& of, std::int32_t stage, std::int32_t variant, bool disagreed);
  // A tenant's row occupied a worker for this many seconds.
  void took(const ModelSpec& pipeline, std::size_t tenant, double seconds) {
    tenants(pipeline)[tenant].busy_s += seconds;
  }
  // A client's row of a pipeline has ended.
  void ended(const Row& row, TimeNs now);
  // `state`: of the pipeline; null: it has had no row yet.
  void fill(v1::Stats* out, const ModelSpec& of, const FlowState* state, const dispatch::Scheduler& scheduler) const;

 private:
  struct Of {
    std::array<StageCounts, flow::kMaxStages> cascade;
    std::vector<FlowStageCounts> pipeline;
    std::array<FlowWorth, 2> by_class;  // interactive, bulk
    std::vector<FlowWorth> by_task;
    std::vector<FlowWorth> by_tenant;
  };

  Of& at(const ModelSpec& of) { return of_.at(of.variant); }
  std::vector<FlowWorth>& tenants(const ModelSpec& pipeline);
  static void fill_cascade(v1::Stats* out, const ModelSpec& of, const Of& counts);
  static void fill_worth(v1::Stats* out, const ModelSpec& of, const Of& counts, const FlowState* state);

  std::array<Of, dispatch::kVariants> of_;
};

}  // namespace arlo::gateway
