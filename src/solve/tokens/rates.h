// How many queries arrive, and what they are worth: by class, a kind and a utility, over the last seconds.
//
// The window is as long as what came in it is all of one rate: from a 64th of the longest one it is doubled while its
// two halves do not differ by more than chance has it (the likelihood ratio of two Poisson counts). So a steady load is
// known well, and a burst is seen when it has begun and when it is over, whatever the longest window is. Rows that
// arrive at one instant are one event there: requests have several. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/time.h"

namespace arlo::solve::tokens {

class Rates {
 public:
  struct Class {
    std::uint32_t kind = 0;
    int step = 0;          // of the utility, quarters of a doubling
    double worth = 0;      // sum of the utilities
    std::size_t rows = 0;  // in the longest window
    double rate = 0;       // rows a second, as of look()
    [[nodiscard]] double utility() const { return rows == 0 ? 0 : worth / static_cast<double>(rows); }
  };

  explicit Rates(TimeNs longest) : longest_(longest) {}
  void set_longest(TimeNs longest) { longest_ = longest; }
  // False: the longest window, always.
  void set_adaptive(bool adaptive) { adaptive_ = adaptive; }

  // In order of time.
  void arrived(TimeNs at, std::uint32_t kind, double utility) {
    const std::uint32_t c = class_of(kind, utility);
    classes_[c].worth += utility;
    ++classes_[c].rows;
    const bool event = rows_.empty() || rows_.back().at != at;
    events_ += event ? 1 : 0;
    rows_.push_back({at, utility, events_, c});
    begun_ = std::min(begun_, at);
  }

  // Brings the rates up to date.
  void look(TimeNs now) {
    for (; !rows_.empty() && rows_.front().at + longest_ < now; rows_.pop_front()) {
      Class& c = classes_[rows_.front().of];
      --c.rows;
      c.worth = c.rows == 0 ? 0 : c.worth - rows_.front().utility;
    }
    window_ = std::clamp<TimeNs>(now - begun_, std::max<TimeNs>(longest_ / kHalvings, 1), longest_);
    if (adaptive_) shorten(now);
    for (Class& c : classes_) c.rate = 0;
    const double each = 1e9 / static_cast<double>(window_);
    all_ = 0;
    for (auto row = rows_.rbegin(); row != rows_.rend() && row->at + window_ >= now; ++row) {
      classes_[row->of].rate += each;
      all_ += each;
    }
  }

  [[nodiscard]] const std::vector<Class>& classes() const { return classes_; }
  [[nodiscard]] double all() const { return all_; }        // rows a second
  [[nodiscard]] TimeNs window() const { return window_; }  // that the rates are of

 private:
  static constexpr double kRise = 7;  // twice the logarithm of the likelihoods' ratio, beyond which a rate has changed
  static constexpr double kFall = 4;
  static constexpr TimeNs kHalvings = 64;  // the longest window over the shortest
  static constexpr std::size_t kMostClasses = 256;
  struct Arrived {
    TimeNs at;
    double utility;
    std::uint64_t event;
    std::uint32_t of;
  };

  std::uint32_t class_of(std::uint32_t kind, double utility) {
    const int step = utility > 0 ? static_cast<int>(std::lround(4 * std::log2(utility))) : -10'000;
    for (std::uint32_t c = 0; c < classes_.size(); ++c) {
      if (classes_[c].kind == kind && classes_[c].step == step) return c;
    }
    for (std::uint32_t c = 0; c < classes_.size(); ++c) {
      if (classes_[c].rows > 0) continue;
      classes_[c] = {kind, step, 0, 0, 0};
      return c;
    }
    if (classes_.size() == kMostClasses) return kMostClasses - 1;  // hostile clients: their utilities are averaged
    classes_.push_back({kind, step, 0, 0, 0});
    return static_cast<std::uint32_t>(classes_.size() - 1);
  }

  // Events after `from`.
  [[nodiscard]] std::uint64_t since(TimeNs from) const {
    const auto at = std::partition_point(rows_.begin(), rows_.end(), [from](const Arrived& r) { return r.at < from; });
    return at == rows_.end() ? 0 : events_ - at->event + 1;
  }

  void shorten(TimeNs now) {
    for (TimeNs half = std::max<TimeNs>(longest_ / kHalvings, 1); half < window_; half *= 2) {
      const auto recent = static_cast<double>(since(now - half));
      const double before = static_cast<double>(since(now - 2 * half)) - recent;
      // The part of the half before in which anything was counted at all.
      const double share = static_cast<double>(std::min(2 * half, window_) - half) / static_cast<double>(half);
      const double mean = (recent + before) / (1 + share);
      const auto term = [](double count, double wanted) { return count > 0 ? count * std::log(count / wanted) : 0; };
      const double differ = 2 * (term(recent, mean) + term(before, mean * share));
      if (mean > 0 && differ > (recent > mean ? kRise : kFall)) {
        window_ = half;
        return;
      }
    }
  }

  TimeNs longest_;
  bool adaptive_ = true;
  TimeNs begun_ = kNever;  // the first arrival
  TimeNs window_ = 1;
  double all_ = 0;
  std::uint64_t events_ = 0;
  std::deque<Arrived> rows_;
  std::vector<Class> classes_;
};

}  // namespace arlo::solve::tokens
