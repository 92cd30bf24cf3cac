#include "solve/tokens/rates.h"

#include <algorithm>
#include <cmath>

namespace arlo::solve::tokens {
namespace {

// Twice the logarithm of the likelihoods' ratio, beyond which a rate has risen or fallen.
constexpr double kRise = 7;
constexpr double kFall = 5;
constexpr TimeNs kShortest = 32'000'000;  // window, at most
constexpr std::size_t kMostClasses = 256;

TimeNs shortest(TimeNs longest) {
  TimeNs window = std::max<TimeNs>(longest / 2, 1);
  while (window > kShortest) window /= 2;
  return window;
}

}  // namespace

void Rates::arrived(TimeNs at, std::uint32_t kind, double utility, std::int32_t length, std::int32_t level) {
  const std::uint32_t c = class_of(kind, level, utility);
  classes_[c].worth += utility;
  classes_[c].tokens += length;
  ++classes_[c].rows;
  const bool event = rows_.empty() || rows_.back().at != at;
  events_ += event ? 1 : 0;
  rows_.push_back({at, utility, events_, c, length});
  begun_ = std::min(begun_, at);
}

void Rates::look(TimeNs now) {
  for (; !rows_.empty() && rows_.front().at + longest_ < now; rows_.pop_front()) {
    Class& c = classes_[rows_.front().of];
    --c.rows;
    c.tokens -= rows_.front().length;
    c.worth = c.rows == 0 ? 0 : c.worth - rows_.front().utility;
  }
  window_ = std::clamp<TimeNs>(now - begun_, shortest(longest_), longest_);
  if (adaptive_) shorten(now);
  const double each = 1e9 / static_cast<double>(window_);
  if (rows_.empty() || rows_.front().at + window_ >= now) {  // all of them
    for (Class& c : classes_) c.rate = each * static_cast<double>(c.rows);
    all_ = each * static_cast<double>(rows_.size());
    return;
  }
  for (Class& c : classes_) c.rate = 0;
  all_ = 0;
  for (auto row = rows_.rbegin(); row != rows_.rend() && row->at + window_ >= now; ++row) {
    classes_[row->of].rate += each;
    all_ += each;
  }
}

std::uint32_t Rates::class_of(std::uint32_t kind, std::int32_t level, double utility) {
  const int step = utility > 0 ? static_cast<int>(std::lround(4 * std::log2(utility))) : -10'000;
  const auto size = static_cast<std::uint32_t>(classes_.size());
  for (std::uint32_t c = 0; c < size; ++c) {
    if (classes_[c].kind == kind && classes_[c].level == level && classes_[c].step == step) return c;
  }
  for (std::uint32_t c = 0; c < size; ++c) {
    if (classes_[c].rows > 0) continue;
    classes_[c] = {.kind = kind, .level = level, .step = step};
    return c;
  }
  if (classes_.size() == kMostClasses) return kMostClasses - 1;  // hostile clients: their utilities are averaged
  classes_.push_back({.kind = kind, .level = level, .step = step});
  return size;
}

std::uint64_t Rates::since(TimeNs from) const {
  const auto at = std::partition_point(rows_.begin(), rows_.end(), [from](const Arrived& r) { return r.at < from; });
  return at == rows_.end() ? 0 : events_ - at->event + 1;
}

void Rates::shorten(TimeNs now) {
  for (TimeNs half = shortest(longest_); half < window_; half *= 2) {
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

}  // namespace arlo::solve::tokens
