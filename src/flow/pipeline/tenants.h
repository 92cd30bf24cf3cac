// Shares of the tenants of one pipeline: decides whose rows give way while there are too few workers for all.
//
// There are too few while more than kFew of the visits wait for longer than an eighth of the time their row can wait,
// or are given up for want of time. Then a tenant that takes more worker-seconds than its share among the active
// tenants pays a multiple of the price: expensive ways become too expensive for its rows, which take cheaper ones. Its
// rows also wait less: a row that cannot finish in a part of its time is given up, which makes room for others. Unused
// shares go to all. Both measures end, faster than they began, when there are enough workers again or when the tenant
// takes no more than its share. Pure, no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"

namespace arlo::flow::pipeline {

class Tenants {
 public:
  static constexpr TimeNs kLook = 100'000'000;
  static constexpr double kMostPrice = 64;

  // By tenant, > 0.
  explicit Tenants(const std::vector<double>& shares);

  // A visit has been answered. `seconds`: of a worker; `waited`, `slack`: of what its row could wait.
  void took(std::size_t tenant, double seconds, TimeNs waited, TimeNs slack);
  // A visit has been given up for want of time or room.
  void given_up(std::size_t tenant);
  // Does nothing until kLook has passed since the last time.
  void look(TimeNs now);

  // Returns its multiple of the price, 1 to kMostPrice.
  [[nodiscard]] double price(std::size_t tenant) const { return all_[tenant].price; }
  // Returns the part of its time that a row may wait, 1 to 1/4.
  [[nodiscard]] double patience(std::size_t tenant) const;

 private:
  static constexpr double kFew = 0.05;
  static constexpr int kIdle = 20;        // looks without a visit: who has so many does not ask
  static constexpr double kForget = 2e9;  // ns in which the time taken decays to 1 / e

  struct Tenant {
    double share;
    double taken = 0;  // worker-seconds, forgotten with time
    double price = 1;
    int idle = kIdle;  // looks since its last visit
  };
  std::vector<Tenant> all_;
  std::uint64_t visits_ = 0;  // since the last look
  std::uint64_t long_ = 0;    // of these, such that waited long, or were given up
  TimeNs looked_ = 0;
};

}  // namespace arlo::flow::pipeline
