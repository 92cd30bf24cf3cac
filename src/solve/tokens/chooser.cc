#include "solve/tokens/chooser.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace arlo::solve::tokens {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr std::size_t kCuts = 4;   // ways to leave out urgent rows, none among them
constexpr double kGivesWay = 4;    // steps of a price at which nothing is worth it,
constexpr double kLeast = 1000.0;  // down to this part of it; then to 0

}  // namespace

Policy parse_token_policy(std::string_view name) {
  if (name == "printed") return Policy::kPrinted;
  if (name == "price") return Policy::kPrice;
  if (name == "fixed") return Policy::kFixed;
  throw std::invalid_argument("tokens: '" + std::string(name) + "' is none of printed, price, fixed");
}

std::unique_ptr<dispatch::BatchChooser> make_chooser(const TokenCounts& counts) {
  const auto need = [](bool good, const char* message) {
    if (!good) throw std::invalid_argument(std::string("tokens: ") + message);
  };
  const Rules& rules = counts.rules;
  const std::size_t variants = counts.variants.size();
  need(variants > 0 && !rules.accuracy.empty(), "variants and their accuracy are missing");
  for (const auto& each : rules.accuracy) need(each.size() == variants, "accuracy of each variant");
  need(rules.energy.empty() || rules.energy.size() == variants, "energy of each variant, or of none");
  for (const double e : rules.energy) need(std::isfinite(e) && e >= 0, "energy must be at least 0");
  need(rules.fixed < variants && rules.alike.most > 0 && rules.window > 0 && rules.horizon > 0 && rules.share > 0 &&
           rules.looked_at > 0,
       "fixed must be one of the counts; most, window, horizon, share and looked_at above 0");
  return std::make_unique<Chooser>(rules);
}

void Chooser::set(Rules rules) {
  rules_ = std::move(rules);
  queue_.set_alike(rules_.alike);
  rates_.set_longest(rules_.window);
  rates_.set_adaptive(rules_.policy == Policy::kPrice);
}

bool Chooser::follow(const dispatch::BatchChooser& other) {
  const auto* const same = dynamic_cast<const Chooser*>(&other);
  if (same != nullptr) set(same->rules_);
  return same != nullptr;
}

void Chooser::choose(const dispatch::Turn& turn, dispatch::BatchChoice& choice) {
  const TimeNs start = turn.start;
  const int workers = turn.instances;
  const Times& times = *turn.times;
  const bool ours = rules_.policy == Policy::kPrice;
  look(start, times, choice);
  rates_.look(start);
  per_row(times);
  heeds_energy_ = ours && !rules_.energy.empty();
  per_row_energy(times, workers);
  price_ = ours ? price_of(workers) : 0;
  const double least_price = price_ / kLeast;
  for (;;) {
    std::erase_if(order_, [](const auto& rows) { return rows.empty(); });
    if (order_.empty()) return;
    std::size_t at = 0;
    std::size_t count = rules_.fixed;
    TimeNs beyond = 0;  // rows that are due up to it are left out
    if (ours || rules_.policy == Policy::kPrinted) {
      if (batches_.size() < order_.size()) batches_.resize(order_.size());
      for (std::size_t b = 0; b < order_.size(); ++b) offer(b, ours ? kCuts : 1, start, workers, times);
      const std::span<const Batch> all(batches_.data(), order_.size());
      if (ours) {
        exact_.plan(start, all, plan_);
      } else if (queue_.batches().size() <= rules_.beta || start < first_ + rules_.initial) {
        plan_ = PlanManual(start, all, static_cast<int>(usual(workers)), rules_.kappa);
      } else {
        plan_ = PlanPrinted(start, all);
      }
      while (at < order_.size() && plan_.choice[at] == kEvict) ++at;
      if (at == order_.size()) {
        if (price_ == 0 && !std::exchange(heeds_energy_, false)) return;
        price_ = price_ > least_price ? price_ / kGivesWay : 0;
        continue;
      }
      const auto option = static_cast<std::size_t>(plan_.choice[at]);
      count = option % counts();
      beyond = batches_[at].options[option].deadline - 1;
    }
    if (settle(at, count, beyond, turn, choice)) return;
  }
}

// The batches to look at, most urgent first. What no count can make in time is evicted.
void Chooser::look(TimeNs start, const Times& times, dispatch::BatchChoice& choice) {
  sorted_.clear();
  for (const Waiting& batch : queue_.batches()) sorted_.emplace_back(batch.deadline, &batch);
  std::stable_sort(sorted_.begin(), sorted_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  order_.resize(std::min(sorted_.size(), rules_.looked_at));
  std::size_t kept = 0;
  for (const auto& [deadline, batch] : sorted_) {
    if (kept == order_.size()) break;
    auto& rows = order_[kept];
    rows.clear();
    for (const Query& row : batch->rows) {
      TimeNs least = kNever;
      for (std::size_t count = 0; count < counts(); ++count) least = std::min(least, times.of(count, row.length, 1));
      if (least != kNever && start + least < row.deadline) {
        rows.push_back(row);
      } else if (least != kNever) {
        choice.evicted.push_back(row.id);
      }
    }
    kept += rows.empty() ? 0 : 1;
  }
  order_.resize(kept);
}

std::size_t Chooser::level_of(std::int32_t level) {
  for (std::size_t l = 0; l < known_; ++l) {
    if (levels_[l].level == level) return l;
  }
  if (known_ == levels_.size()) levels_.push_back({level});
  levels_[known_].level = level;
  levels_[known_].rate = levels_[known_].tokens = 0;
  levels_[known_].longest = 1;
  return known_++;
}

std::int32_t Chooser::Level::length() const {
  return rate > 0 ? static_cast<std::int32_t>(std::lround(tokens / rate)) : longest;
}

// Computes the time of a row by its level of lengths, and the average of arriving rows, or else of waiting ones.
void Chooser::per_row(const Times& times) {
  known_ = 0;
  for (const Rates::Class& c : rates_.classes()) {
    if (c.rate <= 0) continue;
    Level& level = levels_[level_of(c.level)];
    level.rate += c.rate;
    level.tokens += c.rate * c.length();
  }
  for (const auto& rows : order_) {
    for (const Query& row : rows) {
      Level& level = levels_[level_of(row.level)];
      level.longest = std::max(level.longest, row.length);
    }
  }
  const auto most = static_cast<std::int64_t>(rules_.alike.most);
  per_row_.assign(counts(), 0);
  double all = 0;
  for (std::size_t l = 0; l < known_; ++l) all += levels_[l].rate;
  for (std::size_t l = 0; l < known_; ++l) {
    Level& level = levels_[l];
    const std::int32_t length = level.length();
    const double share = all > 0 ? level.rate / all : 1 / static_cast<double>(known_);
    level.each.assign(counts(), 0);
    for (std::size_t count = 0; count < counts(); ++count) {
      const TimeNs time = times.of(count, length, most);
      level.each[count] = time == kNever ? 1e9 : static_cast<double>(time) / kNsPerSecond / static_cast<double>(most);
      per_row_[count] += share * level.each[count];
    }
  }
}

// The same for rows in batches of those that arrive at one moment, which idle workers execute.
void Chooser::per_row_energy(const Times& times, int workers) {
  const auto rows =
      std::clamp<std::int64_t>(std::llround(rates_.together()), 1, static_cast<std::int64_t>(rules_.alike.most));
  busy_.assign(counts(), 0);
  for (std::size_t l = 0; l < known_; ++l) {
    Level& level = levels_[l];
    level.energy.assign(counts(), 0);
    if (!heeds_energy_) continue;
    for (std::size_t count = 0; count < counts(); ++count) {
      const TimeNs time = times.of(count, level.length(), rows);
      level.energy[count] = time == kNever ? -1 : static_cast<double>(time) / kNsPerSecond / static_cast<double>(rows);
      busy_[count] += level.rate * std::max(level.energy[count], 0.0) / workers;
    }
  }
  for (std::size_t l = 0; heeds_energy_ && l < known_; ++l) energy_of(levels_[l].energy);
}

// Seconds [counts] of a worker become what their energy costs beyond that of the cheapest count; -1: there is none.
void Chooser::energy_of(std::vector<double>& seconds) const {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t count = 0; count < counts(); ++count) {
    if (seconds[count] < 0) continue;
    seconds[count] *= rules_.energy[count] / std::max(busy_[count], 1.0);
    least = std::min(least, seconds[count]);
  }
  for (double& each : seconds) each = each < 0 ? 0 : each - least;
}

// Lists the options of batch `b` of the order: every count, and with `cuts` also without its most urgent rows.
void Chooser::offer(std::size_t b, std::size_t cuts, TimeNs start, int workers, const Times& times) {
  const std::vector<Query>& all = order_[b];
  Batch& made = batches_[b];
  made.options.clear();
  made.mean_utility = 0;
  for (const Query& row : all) made.mean_utility += row.utility / static_cast<double>(all.size());
  by_deadline_.assign(all.begin(), all.end());
  std::stable_sort(by_deadline_.begin(), by_deadline_.end(),
                   [](const Query& one, const Query& other) { return one.deadline < other.deadline; });
  const std::size_t rows = by_deadline_.size();
  for (std::size_t cut = 0; cut < cuts; ++cut) {
    const std::size_t from = rows * cut / cuts;
    if (cut > 0 && (from == 0 || by_deadline_[from].deadline == by_deadline_[from - 1].deadline)) continue;
    worth_.assign(rules_.accuracy.size(), 0);
    std::int32_t longest = 1;
    for (std::size_t i = from; i < rows; ++i) {
      const Query& row = by_deadline_[i];
      worth_[row.kind < worth_.size() ? row.kind : 0] += row.utility;
      longest = std::max(longest, row.length);
    }
    if (cut == 0 && heeds_energy_) {  // of all rows: that some are left out saves none
      energy_.clear();
      for (std::size_t count = 0; count < counts(); ++count) {
        const TimeNs time = times.of(count, longest, static_cast<std::int64_t>(rows));
        energy_.push_back(time == kNever ? -1 : static_cast<double>(time) / kNsPerSecond);
      }
      energy_of(energy_);
    }
    for (std::size_t count = 0; count < counts(); ++count) {
      TimeNs time = times.of(count, longest, static_cast<std::int64_t>(rows - from));
      TimeNs deadline = by_deadline_[from].deadline;
      if (time == kNever) {  // an option all the same, for theirs are counted: one that is always late
        time = 0;
        deadline = start;
      } else if (b > 0) {
        time /= workers;  // those behind the first one are shared by all workers
      }
      double utility = 0;
      for (std::size_t k = 0; k < worth_.size(); ++k) utility += worth_[k] * rules_.accuracy[k][count];
      if (heeds_energy_) utility -= energy_[count];
      made.options.push_back({time, utility - price_ * static_cast<double>(time) / kNsPerSecond, deadline});
    }
  }
}

// Returns the utility per second of a worker that the coming time would bring.
double Chooser::price_of(int workers) {
  classes_.clear();
  for (const Rates::Class& c : rates_.classes()) {
    if (c.rate <= 0) continue;
    classes_.push_back({c.kind < rules_.accuracy.size() ? c.kind : 0, level_of(c.level), c.utility(), c.rate});
  }
  // The waiting rows are included; those not looked at are assumed to be like the others.
  std::size_t looked_at = 0;
  for (const auto& rows : order_) looked_at += rows.size();
  const double each = kNsPerSecond / static_cast<double>(rules_.horizon) * static_cast<double>(queue_.size()) /
                      static_cast<double>(std::max<std::size_t>(looked_at, 1));
  for (const auto& rows : order_) {
    for (const Query& row : rows) {
      const std::uint32_t kind = row.kind < rules_.accuracy.size() ? row.kind : 0;
      const std::size_t level = level_of(row.level);
      const auto same = std::find_if(classes_.begin(), classes_.end(), [&](const Class& c) {
        return c.kind == kind && c.level == level && c.utility <= 1.2 * row.utility && row.utility <= 1.2 * c.utility;
      });
      if (same == classes_.end()) {
        classes_.push_back({kind, level, row.utility, each});
      } else {
        same->rate += each;
      }
    }
  }
  const auto fits = [&](double at) {
    double used = 0;
    for (const Class& c : classes_) {
      double best = 0;
      double time = 0;
      for (std::size_t count = 0; count < counts(); ++count) {
        const double takes = levels_[c.level].each[count];
        const double gain = c.utility * rules_.accuracy[c.kind][count] - levels_[c.level].energy[count] - at * takes;
        if (gain > best) {
          best = gain;
          time = takes;
        }
      }
      used += c.rate * time;
    }
    return used <= rules_.share * workers;
  };
  if (fits(0)) return 0;
  double low = 0;
  double high = 1;
  for (int i = 0; i < 200 && !fits(high); ++i) high *= 2;
  for (int i = 0; i < 30; ++i) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return low;  // at `high` the rows worth least would not be executed at all
}

// Algorithm 3's f: the most tokens at which the workers carry the rate.
std::size_t Chooser::usual(int workers) const {
  const double rate = rates_.all() / workers;
  for (std::size_t count = counts(); count-- > 1;) {
    if (rate * per_row_[count] < 1) return count;
  }
  return 0;
}

// Batch `b` of the order becomes the decision, without the rows that would be late. False: none is left.
bool Chooser::settle(std::size_t b, std::size_t count, TimeNs beyond, const dispatch::Turn& turn,
                     dispatch::BatchChoice& choice) {
  std::vector<Query>& rows = order_[b];
  const auto leave_out = [&](TimeNs end) {
    const std::size_t before = rows.size();
    std::erase_if(rows, [&](const Query& row) {
      if (end < row.deadline) return false;
      choice.evicted.push_back(row.id);
      return true;
    });
    return rows.size() < before;
  };
  leave_out(beyond);
  do {
    if (rows.empty()) return false;
    choice.longest = 0;
    for (const Query& row : rows) choice.longest = std::max(choice.longest, row.length);
    const TimeNs time = turn.times->of(count, choice.longest, static_cast<std::int64_t>(rows.size()));
    if (time == kNever) {
      rows.clear();
      return false;
    }
    if (!leave_out(turn.start + time)) break;
  } while (true);
  choice.variant = count;
  for (const Query& row : rows) choice.rows.push_back(row.id);
  return true;
}

}  // namespace arlo::solve::tokens
