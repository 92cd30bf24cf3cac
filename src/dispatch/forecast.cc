#include "dispatch/forecast.h"

#include <algorithm>

namespace arlo::dispatch {

double Forecast::each(const Held& held, std::int32_t length) const {
  if (!s_.batching()) return static_cast<double>(held.bundle.share(length));
  const CostModel& cost = held.bundle.of(length).cost;
  const TimeNs limit =
      std::max(cost.alone(length), held.capacity * held.bundle.share(held.bundle.longest()) / kPatience);
  std::int32_t rows = cost.saturated();
  while (rows > 1 && cost.at(length, rows) > limit) rows /= 2;
  return static_cast<double>(cost.at(length, rows)) / rows;
}

RowsForecast Forecast::rows(std::span<const std::int32_t> lengths, VariantId variant, TimeNs now) {
  constexpr RowsForecast kNowhere{kNever, kNever};
  const MultiLevelQueue& queue = s_.queue;
  const std::int32_t first = queue.first_of(variant);
  homes_.assign(static_cast<std::size_t>(queue.end_of(variant) - first), {});
  const auto home_of = [&](std::int32_t level) -> Home& { return homes_[static_cast<std::size_t>(level - first)]; };
  TimeNs longest = 0;
  for (const std::int32_t length : lengths) {
    if (length < 1 || length > queue.longest(variant)) return kNowhere;
    const std::int32_t level = queue.ideal(variant, length);
    const std::int32_t home = queue.home(level);
    if (home == queue.levels()) return kNowhere;
    const Held& held = queue.group_held(queue.first_fitting(home));
    home_of(home).own += each(held, length);
    ++home_of(level).rows;
    longest = std::max(longest, held.bundle.alone(length));
  }
  double speed = 0;
  for (InstanceId id = 0; id < queue.ids_end(); ++id) {
    const Instance& x = queue[id];
    if (!x.present || x.state != InstanceState::kActive) continue;
    const Held* const held = queue.find(x, variant);
    if (held == nullptr) continue;
    Home& home = home_of(held->level);
    home.speed += 1 / x.pace;
    home.ahead += static_cast<double>(timed::free_at(x, s_.requests, now) - now) / x.pace;
    speed += 1 / x.pace;
  }
  double others = 0;  // of other variants that these instances hold
  for (VariantId other = 0; other < queue.variants(); ++other) {
    const std::int32_t both = queue.with(variant, other);
    for (std::int32_t level = queue.first_of(other); both > 0 && level < queue.end_of(other); ++level) {
      const std::int32_t home = queue.home(level);
      for (const LevelFifos::Line* line : {&s_.lines[level], &s_.overdue[level]}) {
        if (line->count == 0 || home == queue.levels()) continue;
        const double work = line->count * each(queue.group_held(queue.first_fitting(home)), line->mean());
        (other == variant ? home_of(home).ahead : others) += work * both / queue.with(other);
      }
    }
  }
  RowsForecast forecast;
  forecast.alone = std::max(static_cast<TimeNs>(until(variant, false)), longest);
  // The last row may begin when all others have ended.
  forecast.behind = static_cast<TimeNs>(until(variant, true) + others / speed) + longest;
  for (std::int32_t level = first; level < queue.end_of(variant); ++level) {
    const std::int32_t rows = home_of(level).rows;
    if (rows > 0) forecast.behind = std::max(forecast.behind, s_.overdue.wait(level, now, kNever, rows));
  }
  return forecast;
}

double Forecast::until(VariantId variant, bool ahead) {
  const MultiLevelQueue& queue = s_.queue;
  const std::int32_t first = queue.first_of(variant);
  double last = 0;
  for (std::size_t at = homes_.size(); at-- > 0;) {
    Home& home = homes_[at];
    home.until = 0;
    if (home.speed == 0) continue;
    const double work = home.own + (ahead ? home.ahead : 0);
    const auto level = static_cast<std::int32_t>(at) + first;
    const std::int32_t length = queue.level(level).max_length;
    const double here = each(queue.group_held(queue.first_fitting(level)), length);
    // Instances that finish before it take part; the earlier it finishes, the fewer they are.
    double until = work / home.speed;
    for (std::size_t round = at; round < homes_.size(); ++round) {
      const double before = until;
      double speed = home.speed;
      double done = work;
      for (std::size_t longer = at + 1; longer < homes_.size(); ++longer) {
        const Home& other = homes_[longer];
        if (other.speed == 0 || other.until >= before) continue;
        const auto there = static_cast<std::int32_t>(longer) + first;
        const double helps = other.speed * here / each(queue.group_held(queue.first_fitting(there)), length);
        speed += helps;
        done += helps * other.until;
      }
      until = done / speed;
    }
    home.until = until;
    for (std::size_t longer = at + 1; longer < homes_.size(); ++longer) {
      homes_[longer].until = std::max(homes_[longer].until, until);
    }
    last = std::max(last, until);
  }
  return last;
}

}  // namespace arlo::dispatch
