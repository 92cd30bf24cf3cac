// What a simulation is made of and what it tells: options, modes, counts.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/cascade/cascade.h"
#include "flow/pipeline/pipeline.h"
#include "flow/rules/guard.h"
#include "solve/tokens/chooser.h"

namespace arlo::simulate {

using dispatch::kNever;
using dispatch::RuntimeId;
using dispatch::TimeNs;
using WorkerId = std::uint32_t;  // in the order of add_worker(), never reused
inline constexpr TimeNs kBulkPatience = 60;

struct Options {
  dispatch::Options dispatch;
  TimeNs slo = 0;            // of each variant of which set_variant() says nothing, > 0
  TimeNs timeout = kNever;   // the same; from the arrival; > 0
  TimeNs overhead = 0;       // added to the latency of each answer
  TimeNs hop_out = 0;        // scheduler to worker
  TimeNs hop_back = 0;       // worker to scheduler
  std::int32_t retries = 2;  // of a request whose worker failed
  std::uint64_t seed = 0;    // of the noise
  TimeNs warmup = 0;         // requests that arrive before it are served but not counted in Totals
  bool record = false;       // keep columns()
  double bulk_share = 0;     // of the requests, drawn one by one, that are of the class bulk; 0 to 1
  // Quantiles of the factor on each execution time, evenly spaced; empty: no noise. At most 2^20,
  // each above 0 and at most 1e6. A batch takes the factor of its first row.
  std::vector<double> noise;
};

struct RuntimeOptions {
  dispatch::RuntimeSpec spec;                 // what the scheduler believes
  std::int32_t inflight_limit = 1;            // of an instance
  std::vector<dispatch::LatencyPoint> truth;  // what execution takes; empty: as believed
};

enum class Outcome : std::uint8_t { kOnTime, kLate, kRejected, kExpired, kFailed, kPending };
inline constexpr int kOutcomes = 5;  // without kPending

enum class WorkerState : std::uint8_t { kStarting, kServing, kDraining, kGone };

// Sums over the requests that arrived at or after `warmup`. Unanswered ones are in `arrived` only. Requests of the
// class bulk have no SLO: they are counted by themselves, and otherwise only in tokens, padded_tokens, batches and
// rows.
struct Totals {
  std::uint64_t arrived = 0;
  std::uint64_t outcomes[kOutcomes] = {};
  std::uint64_t demoted = 0;        // answered, and started on a level above the ideal one
  std::uint64_t retried = 0;        // times that a lost request was scheduled again (not: found expired then)
  std::uint64_t tokens = 0;         // of the answered requests
  std::uint64_t padded_tokens = 0;  // computed for them: max_length, or the longest of the batch on a dynamic runtime
  std::uint64_t batches = 0;        // that began to execute at or after `warmup`, and came to their end
  std::uint64_t rows = 0;           // of these
  double latency_sum_ns = 0;        // of the answered requests (on_time and late)
  double wait_sum_ns = 0;           // part of it: arrival to begin of execution
  double execute_sum_ns = 0;        // part of it: execution
  TimeNs latency_max = 0;
  std::uint64_t bulk_arrived = 0;
  std::uint64_t bulk_answered = 0;
  double bulk_latency_sum_ns = 0;  // of the answered ones
};

// Events since the last call of take_recent(), warm-up included, bulk excluded. Latencies of answers, as a histogram.
struct Recent {
  std::uint64_t arrived = 0;
  std::uint64_t answered = 0;
  std::uint64_t on_time = 0;
  std::uint64_t unanswered = 0;  // rejected, expired, failed
  double latency_sum_ns = 0;
  std::vector<std::uint64_t> latencies;  // answers by bucket of RecentBuckets, up to the last one used
};

struct WorkerView {
  RuntimeId runtime;  // or bundle; in service, or to come (kStarting)
  WorkerState state;
  std::int32_t waiting;  // requests bound to it or at it, not executing
  std::int32_t executing;
  TimeNs since;          // of the state
  TimeNs busy;           // executing, in all; the batch that runs included up to now
  std::uint64_t served;  // requests executed to their end, in all
};

struct RuntimeView {
  std::uint64_t served = 0;   // answers from it that are counted in Totals
  std::uint64_t demoted = 0;  // of these, from a lower ideal level
  std::uint64_t batches = 0;  // executed to their end, in all
  TimeNs busy = 0;            // worker time in all, without the batches that still run
};

// An arrival and what became of it, with Options::record.
struct Record {
  TimeNs arrived = 0;
  TimeNs latency = -1;  // -1 without an answer
  TimeNs wait = -1;     // arrival to the begin of execution; of the last try, -1 when it never began
  std::int32_t length = 0;
  std::int32_t worker = -1;   // that began to execute it then; -1 none
  std::int16_t runtime = -1;  // of that worker then; -1 none
  std::uint8_t variant = 0;
  Outcome outcome = Outcome::kPending;
  std::int8_t stage = -1;   // of a cascade: whose answer it got; -1 none
  std::int8_t reason = -1;  // flow::Reason; of a pipeline DropReason of the first drop; -1 none
  float accuracy = -1;      // of a pipeline: expected, of the answered part; -1 none
};

// A cascade: the rows that arrive are for the first of its stages, and go on by the gateway's rules. Row n has the
// answers of entry n modulo `rows` of the records.
struct Cascade {
  std::vector<dispatch::VariantId> variants;  // of its stages; their runtimes
  flow::Rules rules;
  std::uint64_t seed = 0;
  std::size_t rows = 0;              // of the records, > 0
  std::vector<double> confidence;    // [rows, stages]
  std::vector<std::int32_t> tokens;  // [rows, stages]: of the row as that stage gets it; empty, or 0: all of it
  TimeNs margin = 0;                 // before its timeout a row with an answer ends with it
  bool auto_price = false;
};

// A pipeline: the rows that arrive are roots for its entry, and src/flow/pipeline decides where they go. The number of
// children that an edge makes of a row is drawn from (seed, number of the root, its way through edges), independent of
// the variants, so that these are compared under equal luck.
struct Pipeline {
  enum class Children : std::uint8_t {
    kConstant,   // the mean, rounded
    kCeil,       // one of the two whole numbers around the mean
    kPoisson,    // of that mean
    kEmpirical,  // one of `counts`, scaled to the mean
    kTrace,      // that of `counts` with the number of the root, in order of arrival, scaled to the mean; then again
  };
  struct Edge {
    Children kind = Children::kCeil;
    std::vector<double> take;          // [variants of the tail]: share of the rows that take it
    std::vector<double> mean;          // [variants of the tail]: children of those, on average
    std::vector<std::int32_t> counts;  // kEmpirical, kTrace: at least one is above 0
    std::int32_t max = 1 << 16;        // children; more are left out
    // Tokens of the children of a row, and shares of the rows that have them; empty: as the parent has.
    std::vector<std::pair<std::int32_t, double>> lengths;
  };
  // Records of labelled rows. Each root is one of them, drawn by its luck, so that variants are right and wrong,
  // certain and uncertain on the same rows; so are its children.
  struct Rows {
    struct Stage {
      std::vector<flow::Guard> guards;   // of its edges and exits; empty: shares decide, as without rows
      bool first = false;                // one edge at most
      std::vector<float> scores;         // [guards, variants, rows]
      std::vector<std::int32_t> labels;  // [variants, rows]
    };
    std::size_t count = 0;            // above 0
    std::vector<std::uint8_t> right;  // [prefixes, rows]: the answer of this way is
    std::vector<Stage> stages;        // [stages]
  };
  flow::pipeline::Spec spec;
  std::optional<Rows> rows;
  std::vector<Edge> edges;                 // as in `spec`
  std::vector<std::vector<double>> exits;  // [stages][variants]: share of the rows that end there regardless of edges
  TimeNs deadline = kNever;                // of a root, from its arrival: an answer after it is worth nothing
  std::uint64_t seed = 0;
};

// Rows of one network at several token counts: the variant of a request that arrives is a number of `queries`, of which
// set_variant() says the time limits, and it is late at the timeout.
struct TokenQueries {
  struct Query {
    double utility = 1;
    std::uint32_t kind = 0;  // of Rules::accuracy; with bins, that of the first one, which those of the others follow
  };
  solve::tokens::TokenCounts counts;
  std::vector<Query> queries;
  std::vector<std::int32_t> bins;  // ends of length bins in tokens, ascending, the last open above; empty: one
};

// Of the roots that arrived at or after `warmup`, and of what they visited.
struct PipelineTotals {
  std::uint64_t roots = 0;    // that have ended
  std::uint64_t on_time = 0;  // answered within the SLO, without a drop
  std::uint64_t late = 0;
  std::uint64_t failed = 0;   // ended by a drop, or lost
  std::uint64_t partial = 0;  // answered, without all of it
  double accuracy_sum = 0;    // of the answered ones, on time or not: expected, or, of recorded rows, the right share
  double on_time_accuracy_sum = 0;
  std::uint64_t leaves_on_time = 0;  // answers of visits that made no children
  std::uint64_t leaves_late = 0;
  double leaf_accuracy_sum = 0;                              // of them
  std::uint64_t dropped[flow::pipeline::kDropReasons] = {};  // visits
  std::uint64_t fell_back = 0;                               // visits that an answer before them stood for
  std::uint64_t rerouted = 0;
  std::vector<std::uint64_t> visits;                 // [variants], stage by stage: entered
  std::vector<std::vector<std::int64_t>> by_length;  // [variants], index = tokens; those of the warm-up too
  // Of all roots, those of the warm-up too: visits of a variant that were answered, and of these those without
  // children; children that they had, by edge.
  struct Made {
    std::uint64_t answered = 0;
    std::uint64_t ended = 0;
    std::vector<std::uint64_t> children;  // [edges]
  };
  std::vector<Made> made;  // [variants]
};

}  // namespace arlo::simulate
