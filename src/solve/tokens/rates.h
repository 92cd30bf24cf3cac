// Rates of arriving queries and their worth, by class (a kind, a level of lengths and a utility), over the last
// seconds.
//
// The window is as long as what came in it is all of one rate: from some 32 ms on it is doubled while its two halves do
// not differ by more than chance has it (the likelihood ratio of two Poisson counts). So a steady load is known well,
// and a burst is seen when it has begun and when it is over, for any longest window. Rows that arrive at one
// instant are one event there: requests have several. Pure.
#pragma once

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
    std::int32_t level = 0;
    int step = 0;             // of the utility, quarters of a doubling
    double worth = 0;         // sum of the utilities
    std::int64_t tokens = 0;  // sum of the lengths
    std::size_t rows = 0;     // in the longest window
    double rate = 0;          // rows a second, as of look()
    [[nodiscard]] double utility() const { return rows == 0 ? 0 : worth / static_cast<double>(rows); }
    [[nodiscard]] double length() const {
      return rows == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(rows);
    }
  };

  explicit Rates(TimeNs longest) : longest_(longest) {}
  void set_longest(TimeNs longest) { longest_ = longest; }
  // False: the longest window, always.
  void set_adaptive(bool adaptive) { adaptive_ = adaptive; }

  // In order of time. length: tokens; level: as of Query.
  void arrived(TimeNs at, std::uint32_t kind, double utility, std::int32_t length = 1, std::int32_t level = 0);
  // Brings the rates up to date.
  void look(TimeNs now);

  [[nodiscard]] const std::vector<Class>& classes() const { return classes_; }
  [[nodiscard]] double all() const { return all_; }  // rows a second
  // Rows that come at one moment, on average; at least 1.
  [[nodiscard]] double together() const {
    if (rows_.empty()) return 1;
    return static_cast<double>(rows_.size()) / static_cast<double>(events_ - rows_.front().event + 1);
  }
  [[nodiscard]] TimeNs window() const { return window_; }  // that the rates are of

 private:
  struct Arrived {
    TimeNs at;
    double utility;
    std::uint64_t event;
    std::uint32_t of;
    std::int32_t length;
  };
  std::uint32_t class_of(std::uint32_t kind, std::int32_t level, double utility);
  // Events after `from`.
  [[nodiscard]] std::uint64_t since(TimeNs from) const;
  void shorten(TimeNs now);

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
