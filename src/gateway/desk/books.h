// The counters of a model: rows by outcome, length and level, and their durations.
//
// A row is booked when its request is answered, by the client's outcome: no row of a failed request counts as answered,
// and a request is on time if its last row is. Not synchronised: the router's lock covers it.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dispatch/scheduler.h"
#include "gateway/desk/call.h"
#include "gateway/desk/latency_stats.h"

namespace arlo::gateway {

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
  void started(const Row& row);
  // A batch goes to a worker, or its last row was taken back.
  void sent() { ++batches_; }
  void unsent() { --batches_; }
  // A start was taken back before it was sent.
  void unstarted(const Row& row);
  void retried() { ++retries_; }
  // Every row of the call has ended.
  void ended(const Call& call, TimeNs now);
  // A request was refused before it had rows.
  void refused(const Fault& fault) { count(fault, 1); }

  void fill(v1::Stats* out, TimeNs now) const;
  [[nodiscard]] const Histograms& histograms() const { return histograms_; }

 private:
  struct LevelCount {
    std::int32_t max_length = 0;
    std::uint64_t ideal = 0, dispatched = 0, demoted = 0;
  };

  void count(const Fault& fault, std::uint64_t rows);
  [[nodiscard]] LevelCount& at(std::int32_t level) { return levels_[static_cast<std::size_t>(level - first_level_)]; }

  std::int32_t first_level_ = 0;  // the model's first level in the scheduler's numbering
  std::vector<LevelCount> levels_;
  std::vector<std::uint64_t> arrivals_by_length_;
  std::uint64_t outcomes_[kOutcomes] = {};
  std::uint64_t overloaded_ = 0;
  std::uint64_t tokens_ = 0, computed_tokens_ = 0, retries_ = 0, batches_ = 0, bulk_ = 0;
  LatencyWindow window_total_, window_queue_, window_execute_;
  Histograms histograms_;
};

using BooksByVariant = std::vector<std::unique_ptr<Books>>;

}  // namespace arlo::gateway
