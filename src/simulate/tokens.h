// OTAS (arXiv 2401.05031) simulated: queries of several kinds on workers that each hold one body at all token counts,
// so that a change costs nothing. Queries are put together on arrival (Algorithm 1); whenever a worker is idle the
// queue is planned (solve/tokens), the first decision is carried out, and the rest is planned anew the next time. Pure.
//
// Beside the printed rules: `exact`, whose batches may also leave out their most urgent rows; `price`, the same where a
// second of a worker costs what it would bring for the queries to come, by the fluid bound of Eq. 1 at the rates of the
// last window; `fixed`, one count for all; and `load`, which takes Algorithm 3's f of the rate alone.
//
// Four outcomes, as in the paper's section V: accurate and in time (1), wrong in time (2), late (3), evicted (4): a
// query that cannot make its deadline leaves before it would be executed. Whether an answer is right is drawn for each
// query once, for all policies alike.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/latency_table.h"
#include "base/time.h"
#include "solve/tokens/queue.h"

namespace arlo::simulate::tokens {

struct Kind {
  TimeNs slo = 0;
  double utility = 0;
  std::vector<double> accuracy;  // [counts]
};

enum class Policy : std::uint8_t { kPrinted, kExact, kPrice, kFixed, kLoad };

struct Options {
  std::vector<LatencyTable> latency;  // [counts], ascending tokens; of batches by rows, at length 1
  std::vector<Kind> kinds;
  Policy policy = Policy::kPrice;
  std::size_t fixed = 0;  // the count of kFixed
  solve::tokens::Alike alike;
  std::size_t beta = 5;                                 // kPrinted: Algorithm 3 up to this many batches,
  TimeNs initial = 2'000'000'000;                       // and until then
  double kappa = 0.8;                                   // Algorithm 3
  std::vector<std::pair<double, std::size_t>> by_rate;  // f: (rate, count up to it), ascending; beyond all: the first
  TimeNs window = 1'000'000'000;                        // that rates are of
  TimeNs switching = 0;                                 // time that another count than that of the batch before costs
  double spread = 0;                                    // of the logarithm of a factor on each execution time
  int workers = 1;
  std::uint64_t seed = 0;
  TimeNs warmup = 0;               // queries that arrive before it are not counted
  std::size_t looked_at = 32;      // batches, most urgent first
  double share = 1.0;              // kPrice: of the workers' time that may be sold
  TimeNs horizon = 1'000'000'000;  // kPrice: in which what waits shall be through
};

inline constexpr int kTypes = 4;

struct Result {
  std::vector<std::array<std::uint64_t, kTypes>> outcomes;  // [kinds]
  double utility = 0;
  double offered = 0;                       // utility of all queries
  std::vector<std::uint64_t> rows;          // [counts]: executed
  std::vector<std::uint64_t> batches;       // [counts]
  std::array<std::uint64_t, 101> shares{};  // batches by share of accurate answers, in hundredths
  std::uint64_t plans = 0;
  TimeNs busy = 0;
};

// `arrived` ascends. All arguments have been checked.
Result Run(const Options& options, std::span<const TimeNs> arrived, std::span<const std::uint32_t> kind);

}  // namespace arlo::simulate::tokens
