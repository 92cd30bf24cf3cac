// The counters of a model: rows by outcome, length and level, and their durations; of a cascade or a pipeline, also
// what became of rows at each stage. Counters that are reported as they are lie in the messages that report them.
//
// A row is booked when its request is answered, by the client's outcome: no row of a failed request counts as answered,
// and a request is on time if its last row is. Not synchronised: the router's lock covers it.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "dispatch/scheduler.h"
#include "gateway/desk/call.h"
#include "gateway/desk/latency_stats.h"

namespace arlo::gateway {

struct FlowState;

enum class Outcome : std::uint8_t { kOnTime, kLate, kRejected, kExpired, kCancelled, kFailed };
inline constexpr std::size_t kOutcomes = 6;

struct Histograms {
  LatencyBuckets total, queue, execute;
};

class Books {
 public:
  // Keeps counters per level aligned when a new max_length is inserted between levels.
  void relevel(const dispatch::Scheduler& scheduler, dispatch::VariantId variant);

  void arrived(std::int32_t length, std::int32_t ideal_level);
  void started(const Row& row) { started(row, 1); }
  // A batch goes to a worker, or its last row was taken back.
  void sent() { ++batches_; }
  void unsent() { --batches_; }
  // A start was taken back before it was sent.
  void unstarted(const Row& row) { started(row, -1); }
  void retried() { ++retries_; }
  // Every row of the call has ended.
  void ended(const Call& call, TimeNs now);
  // A request was refused before it had rows.
  void refused(const Fault& fault) { count(fault, 1); }

  void fill(v1::Stats* out, TimeNs now) const;
  [[nodiscard]] const Histograms& histograms() const { return histograms_; }

 private:
  void count(const Fault& fault, std::uint64_t rows);
  // `more`: 1, or -1 to take it back.
  void started(const Row& row, std::int64_t more);
  [[nodiscard]] v1::LevelStats& at(std::int32_t level) {
    return levels_[static_cast<std::size_t>(level - first_level_)];
  }

  std::int32_t first_level_ = 0;  // the model's first level in the scheduler's numbering
  std::vector<v1::LevelStats> levels_;
  std::vector<std::uint64_t> arrivals_by_length_;
  std::uint64_t outcomes_[kOutcomes] = {};
  std::uint64_t overloaded_ = 0;
  std::uint64_t tokens_ = 0, computed_tokens_ = 0, retries_ = 0, batches_ = 0, bulk_ = 0;
  LatencyWindow window_total_, window_queue_, window_execute_;
  Histograms histograms_;
};

using BooksByVariant = std::vector<std::unique_ptr<Books>>;

// Adds to one of several counters.
void bump(google::protobuf::RepeatedField<std::uint64_t>* counters, auto which, std::uint64_t more = 1) {
  *counters->Mutable(static_cast<int>(which)) += more;
}

class FlowBooks {
 public:
  // A pipeline comes into force; `others`: its tenants differ from the previous ones.
  void begin(const ModelSpec& pipeline, bool others);
  [[nodiscard]] v1::StageStats& stage(const ModelSpec& cascade, std::int32_t stage);
  // A cascade's stage has answered, with this confidence.
  static void visited(v1::StageStats& stage, double confidence, bool finite);
  [[nodiscard]] v1::PipelineStageStats& at(const ModelSpec& pipeline, std::int32_t stage) {
    return at(pipeline).pipeline.at(static_cast<std::size_t>(stage));
  }
  // Rows came to this stage of a pipeline.
  void arrived(const ModelSpec& pipeline, std::int32_t stage, std::uint64_t rows) {
    auto& counts = at(pipeline, stage);
    counts.set_arrived(counts.arrived() + rows);
  }
  // Rows were joined on this edge of the core to one of the stage.
  void joined(const ModelSpec& pipeline, std::int32_t stage, std::int32_t edge);
  // A variant of this stage has answered a row.
  void answered(const ModelSpec& pipeline, std::int32_t stage, std::int32_t variant);
  // The edges of the stage made so many rows of it; 0: it ends there.
  void became(const ModelSpec& pipeline, std::int32_t stage, std::int32_t variant, std::uint64_t rows);
  // Answers of this stage, or of one of its variants, were compared with better ones.
  void audited(const ModelSpec& of, std::int32_t stage, std::int32_t variant, bool disagreed);
  // A tenant's row occupied a worker for this many seconds.
  void took(const ModelSpec& pipeline, std::size_t tenant, double seconds);
  // A client's row of a pipeline has ended.
  void ended(const Row& row, TimeNs now);
  // `state`: of the pipeline; null: it has had no row yet.
  void fill(v1::Stats* out, const ModelSpec& of, const FlowState* state, const dispatch::Scheduler& scheduler) const;

 private:
  struct Of {
    std::vector<v1::StageStats> cascade;
    std::vector<v1::PipelineStageStats> pipeline;  // `made` counts all edges of a stage
    std::array<v1::Worth, 2> by_class;             // interactive, bulk
    std::vector<v1::Worth> by_task, by_tenant;
  };

  Of& at(const ModelSpec& of) { return of_.at(of.variant); }
  static void fill_cascade(v1::Stats* out, const ModelSpec& of, const Of& counts);
  static void fill_worth(v1::Stats* out, const ModelSpec& of, const Of& counts, const FlowState* state);
  static void fill_stages(v1::Stats* out, const ModelSpec& of, const Of& counts);

  std::array<Of, dispatch::kVariants> of_;
};

}  // namespace arlo::gateway
