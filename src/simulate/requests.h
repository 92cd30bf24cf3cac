// The requests in the system, by slot, and their luck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulate/accounts.h"
#include "simulate/worker.h"

namespace arlo::simulate {

// splitmix64: a good 64-bit mix of a counter.
inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// One more of so many tokens.
inline void count_length(std::vector<std::int64_t>& by_length, std::int32_t tokens) {
  const auto index = static_cast<std::size_t>(std::clamp(tokens, 0, dispatch::kMaxLength));
  if (index >= by_length.size()) by_length.resize(index + 1);
  ++by_length[index];
}

class Requests {
 public:
  explicit Requests(const Options& options)
      : noise_(options.noise), bulk_share_(options.bulk_share), seed_(options.seed) {}

  [[nodiscard]] Request& operator[](Slot slot) { return requests_[slot]; }
  [[nodiscard]] Slot slots() const { return static_cast<Slot>(requests_.size()); }

  Slot take(TimeNs now, std::int32_t length, dispatch::VariantId variant) {
    const Slot slot = take_slot();
    Request& request = requests_[slot];
    request.arrived = now;
    request.number = arrivals_++;
    request.length = request.whole = length;
    request.variant = variant;
    request.bulk = bulk_share_ > 0 && drawn(request.number) < bulk_share_;
    return slot;
  }

  // A visit of a root, whose luck is that of its way.
  Slot take_visit(TimeNs now, std::int32_t length, std::uint64_t luck) {
    const Slot slot = take_slot();
    Request& request = requests_[slot];
    request.arrived = now;
    request.number = luck >> 8;
    request.length = request.whole = length;
    request.luck = luck;
    return slot;
  }
  // Of the root with this number.
  [[nodiscard]] std::uint64_t luck(std::uint64_t number) const { return mixed(mixed(seed_ + 1) ^ number); }

  void give_back(Slot slot) {
    requests_[slot].present = false;
    free_.push_back(slot);
  }

  // Returns the factor of its execution time, the same under every policy, so that policies are compared under equal
  // luck.
  [[nodiscard]] double noise(Slot slot) const {
    if (noise_.empty()) return 1;
    const Request& request = requests_[slot];
    const auto attempt = static_cast<std::uint64_t>(request.lost);
    const std::uint64_t random = mixed(mixed(seed_) ^ (request.number << 8 | attempt));
    return noise_[static_cast<std::size_t>(((random >> 32) * noise_.size()) >> 32)];
  }

 private:
  Slot take_slot() {
    Slot slot;
    if (free_.empty()) {
      slot = static_cast<Slot>(requests_.size());
      requests_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    requests_[slot] = Request{};
    requests_[slot].present = true;
    return slot;
  }

  // Returns a number evenly from 0 to 1, for the class of a request; a different stream from the noise's.
  [[nodiscard]] double drawn(std::uint64_t number) const {
    return static_cast<double>(mixed(~mixed(seed_) ^ number) >> 11) * 0x1p-53;
  }

  std::vector<double> noise_;
  double bulk_share_;
  std::uint64_t seed_;
  std::vector<Request> requests_;
  std::vector<Slot> free_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace arlo::simulate
