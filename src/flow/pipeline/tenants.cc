#include "flow/pipeline/tenants.h"

#include <algorithm>
#include <cmath>

namespace arlo::flow::pipeline {

Tenants::Tenants(const std::vector<double>& shares) {
  all_.reserve(shares.size());
  for (const double share : shares) all_.push_back({.share = share});
}

void Tenants::took(std::size_t tenant, double seconds, TimeNs waited, TimeNs slack) {
  all_[tenant].taken += seconds;
  all_[tenant].idle = 0;
  ++visits_;
  long_ += waited > slack / 8 ? 1 : 0;
}

void Tenants::given_up(std::size_t tenant) {
  all_[tenant].idle = 0;
  ++visits_;
  ++long_;
}

void Tenants::look(TimeNs now) {
  if (now - looked_ < kLook) return;
  const double keep = std::exp(-static_cast<double>(now - looked_) / kForget);
  looked_ = now;
  double taken = 0;
  for (const Tenant& one : all_) taken += one.taken;
  double shares = 0;  // of those who ask
  for (const Tenant& one : all_) shares += one.idle < kIdle ? one.share : 0;
  const bool few = static_cast<double>(long_) > kFew * static_cast<double>(visits_);
  for (Tenant& one : all_) {
    const bool over = few && one.taken * shares > one.share * taken;
    one.price = over ? std::min(one.price * 1.25, kMostPrice) : std::max(one.price / 1.5, 1.0);
    one.taken *= keep;
    one.idle = std::min(one.idle + 1, kIdle);
  }
  visits_ = long_ = 0;
}

double Tenants::patience(std::size_t tenant) const { return std::max(0.25, 1 / std::sqrt(all_[tenant].price)); }

}  // namespace arlo::flow::pipeline
