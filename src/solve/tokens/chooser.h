// Chooses the rows that a worker with room executes next, and their token count: OTAS (arXiv 2401.05031) as printed,
// and ours. Decisions only: the gateway's scheduler and the simulator call the same code at every start of a batch.
//
// Rows that wait are put together on arrival (queue.h, Algorithm 1). When a worker has room the batches are planned,
// the most urgent first; only the first decision is carried out, and the rest is replanned the next time. A row that
// can no longer make its deadline is evicted when that is known, not when its deadline comes.
//
//   printed  Algorithms 2 and 3
//   price    the plan of most utility for what waits, which may also leave out a batch's most urgent rows, where a
//            second of a worker costs what it would bring for the rows to come: the least price at which what waits and
//            what comes fit into the workers' time (the dual of Eq. 1 as a fluid), by rates.h. So it rises with a
//            burst, before the line is long, and falls when the burst is over
//   fixed    one count for all
//
// Energy. With `price` a count's utility is less what its worker time draws beyond the count that draws
// least (Rules::energy). What any answer would draw is not counted, so energy chooses counts, and leaves no row out
// that can have the one that draws least. Nor is time counted that workers would not stand by: where rows of a count
// keep them busy however few go together, shorter batches are smaller ones, and save nothing.
//
// Threads: none. Nothing is allocated in steady state but nodes of the queue. O(rows looked at + plan).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time.h"
#include "dispatch/batch_chooser.h"
#include "solve/tokens/plan.h"
#include "solve/tokens/queue.h"
#include "solve/tokens/rates.h"

namespace arlo::solve::tokens {

using Times = dispatch::BatchTimes;

enum class Policy : std::uint8_t { kPrinted, kPrice, kFixed };
// "printed", "price", "fixed". Throws std::invalid_argument.
Policy parse_token_policy(std::string_view name);

struct Rules {
  Policy policy = Policy::kPrice;
  std::size_t fixed = 0;  // the count of kFixed
  Alike alike;
  std::vector<std::vector<double>> accuracy;  // [kinds][counts], counts ascending by tokens; at least one kind
  std::vector<double> energy = {};  // [counts]: utility that a worker-second costs beyond the price; empty: none
  std::size_t beta = 5;             // kPrinted: Algorithm 3 up to this many batches,
  TimeNs initial = 2'000'000'000;   // and so long from the first row on
  double kappa = 0.8;               // Algorithm 3
  TimeNs window = 1'000'000'000;    // of the rates, at most
  TimeNs horizon = 1'000'000'000;   // kPrice: in which the waiting rows shall be done
  double share = 1.0;               // kPrice: of the workers' time that may be sold
  std::size_t looked_at = 32;       // batches, most urgent first
};

// Variants of one network at several token counts, the fewest first, and the rules by which one of them gets a batch.
struct TokenCounts {
  std::vector<dispatch::VariantId> variants;
  Rules rules;
};

class Chooser final : public dispatch::BatchChooser {
 public:
  explicit Chooser(Rules rules) : queue_(rules.alike), rates_(rules.window) { set(std::move(rules)); }

  void arrived(TimeNs now, const Query& query) override {
    if (first_ == kNever) first_ = now;
    rates_.arrived(now, query.kind, query.utility, query.length, query.level);
  }
  void add(const Query& query) override { queue_.add(query); }
  void remove(dispatch::RequestHandle id) override { queue_.remove(id); }
  bool follow(const dispatch::BatchChooser& other) override;

  // No batch is held back for a better one: if none is worth the price, the price gives way, and finally the energy.
  void choose(const dispatch::Turn& turn, dispatch::BatchChoice& choice) override;
  // Without its energy.
  [[nodiscard]] double price() const override { return price_; }

 private:
  struct Level {  // of lengths
    std::int32_t level;
    double rate = 0;                            // rows a second
    double tokens = 0;                          // that these have, a second
    std::int32_t longest = 1;                   // of the rows that wait
    [[nodiscard]] std::int32_t length() const;  // the mean of rows that come; of none the longest that waits
    std::vector<double> each = {};              // [counts]: seconds of a row of mean length in a full batch
    std::vector<double> energy = {};            // [counts]: of a row, by batches of those that come together
  };
  struct Class {
    std::uint32_t kind;
    std::size_t level;  // in levels_
    double utility;
    double rate;
  };
  void set(Rules rules);
  void look(TimeNs start, const Times& times, dispatch::BatchChoice& choice);
  void offer(std::size_t b, std::size_t cuts, TimeNs start, int workers, const Times& times);
  double price_of(int workers);
  [[nodiscard]] std::size_t usual(int workers) const;
  bool settle(std::size_t b, std::size_t count, TimeNs beyond, const dispatch::Turn& turn,
              dispatch::BatchChoice& choice);
  [[nodiscard]] std::size_t counts() const { return rules_.accuracy.front().size(); }
  void per_row(const Times& times);
  void per_row_energy(const Times& times, int workers);
  void energy_of(std::vector<double>& seconds) const;
  std::size_t level_of(std::int32_t level);

  Rules rules_;
  Queue queue_;
  Rates rates_;
  TimeNs first_ = kNever;  // row
  double price_ = 0;
  bool heeds_energy_ = false;
  ExactPlanner exact_;
  Plan plan_;
  std::vector<std::vector<Query>> order_;  // batches to look at, most urgent first, without evicted rows
  std::vector<std::pair<TimeNs, const Waiting*>> sorted_;
  std::vector<Batch> batches_;
  std::vector<Query> by_deadline_;
  std::vector<double> worth_;    // [kinds]: utility of a batch's rows
  std::vector<double> energy_;   // [counts]: of a batch, as energy_of() has it
  std::vector<double> busy_;     // [counts]: workers that what comes keeps busy in the smallest batches, of all
  std::vector<double> per_row_;  // [counts]: seconds of a row that comes, in a full batch
  std::vector<Level> levels_;    // the first `known_` of them
  std::size_t known_ = 0;
  std::vector<Class> classes_;
};

// Throws std::invalid_argument for rules that are not of these variants, or out of range.
std::unique_ptr<dispatch::BatchChooser> make_chooser(const TokenCounts& counts);

}  // namespace arlo::solve::tokens
