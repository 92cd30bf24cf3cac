// The books of a simulation: sums, latencies, recent events, and columns where they are requested.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulate/histogram.h"
#include "simulate/types.h"

namespace arlo::simulate {

using RecentBuckets = Buckets<7>;

// A request in the system.
struct Request {
  TimeNs arrived = 0;
  TimeNs begun = -1;    // of its execution; -1 until it begins, and again when it is retried
  TimeNs executed = 0;  // duration of it
  std::uint64_t number = 0;
  std::int32_t length = 0;
  std::int32_t computed = 0;  // tokens
  dispatch::RequestHandle handle = dispatch::kNone;
  WorkerId worker = dispatch::kNone;
  std::int32_t lost = 0;  // times
  RuntimeId runtime = 0;
  bool present = false;
  bool demoted = false;
  bool returning = false;  // executed, but the scheduler does not know yet
  bool bulk = false;
  dispatch::VariantId variant = 0;
  // Of a cascade.
  std::int32_t whole = 0;     // tokens, before any were left out
  std::int8_t stage = -1;     // that it is at
  std::int8_t answered = -1;  // whose answer it has
  std::int8_t reason = -1;    // why it ended with that
  TimeNs before = 0;          // executed at earlier stages
  // Of a visit of a pipeline.
  std::uint32_t visit = dispatch::kNone;  // kNone: of none any more, or it is a root
  std::uint32_t root = dispatch::kNone;   // its slot; kNone: it is no visit
  std::uint64_t luck = 0;                 // that its children are drawn from
  float accuracy = -1;                    // of a root
};

class Accounts {
 public:
  Accounts(TimeNs warmup, bool record) : warmup_(warmup), record_(record) {}

  void arrived(const Request& request) {
    recent_.arrived += request.bulk ? 0 : 1;
    if (request.arrived >= warmup_) {
      each(request, [&](Sums& sums) { ++(request.bulk ? sums.totals.bulk_arrived : sums.totals.arrived); });
    }
    if (!record_) return;
    records.push_back(
        {.arrived = request.arrived, .length = request.length, .variant = static_cast<std::uint8_t>(request.variant)});
  }

  // An answer in time for its client. True when it counts in the totals.
  bool answered(const Request& request, TimeNs latency_ns, bool on_time) {
    const bool counts = request.arrived >= warmup_;
    if (counts) {
      each(request, [&](Sums& sums) {
        sums.totals.tokens += static_cast<std::uint64_t>(request.length);
        sums.totals.padded_tokens += static_cast<std::uint64_t>(request.computed);
        if (!request.bulk) return;
        ++sums.totals.bulk_answered;
        sums.totals.bulk_latency_sum_ns += static_cast<double>(latency_ns);
      });
    }
    if (request.bulk) return counts;
    ++recent_.answered;
    recent_.on_time += on_time ? 1 : 0;
    recent_.latency_sum_ns += static_cast<double>(latency_ns);
    const std::size_t bucket = RecentBuckets::of(latency_ns);
    if (bucket >= recent_.latencies.size()) recent_.latencies.resize(bucket + 1);
    ++recent_.latencies[bucket];
    if (!counts) return false;
    each(request, [&](Sums& sums) {
      sums.latency.add(latency_ns);
      Totals& totals = sums.totals;
      totals.latency_sum_ns += static_cast<double>(latency_ns);
      totals.wait_sum_ns += static_cast<double>(request.begun - request.arrived - request.before);
      totals.execute_sum_ns += static_cast<double>(request.executed + request.before);
      totals.latency_max = std::max(totals.latency_max, latency_ns);
      totals.demoted += request.demoted ? 1 : 0;
    });
    return true;
  }

  // Every request, once. `latency_ns` is that of an answer.
  void ended(const Request& request, Outcome outcome, TimeNs latency_ns) {
    const bool answer = outcome == Outcome::kOnTime || outcome == Outcome::kLate;
    if (!request.bulk) {
      recent_.unanswered += answer ? 0 : 1;
      if (request.arrived >= warmup_) {
        each(request, [&](Sums& sums) { ++sums.totals.outcomes[static_cast<std::size_t>(outcome)]; });
      }
    }
    if (!record_) return;
    Record& row = records[static_cast<std::size_t>(request.number)];
    row.outcome = outcome;
    if (answer) row.latency = latency_ns;
    row.stage = request.answered;
    row.reason = request.reason;
    row.accuracy = request.accuracy;
    if (request.begun < 0) return;
    row.wait = request.begun - request.arrived - request.before;
    row.worker = static_cast<std::int32_t>(request.worker);
    row.runtime = static_cast<std::int16_t>(request.runtime);
  }

  // A batch has ended.
  void executed(TimeNs begun, std::size_t rows) {
    if (begun < warmup_) return;
    ++all.totals.batches;
    all.totals.rows += rows;
  }

  void retried(const Request& request) {
    if (request.arrived >= warmup_) each(request, [](Sums& sums) { ++sums.totals.retried; });
  }

  Recent take_recent() { return std::exchange(recent_, Recent{}); }

  struct Sums {
    Totals totals;
    Histogram latency;
  };
  [[nodiscard]] const Sums& of(dispatch::VariantId variant) const {
    static const Sums kNothing;
    if (variants_.empty()) return variant == 0 ? all : kNothing;
    return variant < variants_.size() ? variants_[variant] : kNothing;
  }
  // From now on, before the first request, the variants are also counted one by one.
  void by_variant() { variants_.resize(dispatch::kVariants); }

  Sums all;
  std::vector<Record> records;

 private:
  template <typename Count>
  void each(const Request& request, Count count) {
    count(all);
    if (!variants_.empty()) count(variants_[request.variant]);
  }

  std::vector<Sums> variants_;  // empty: not one by one
  TimeNs warmup_;
  bool record_;
  Recent recent_;
};

}  // namespace arlo::simulate
