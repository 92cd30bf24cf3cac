// The order among clients: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM'96), counted in requests.
//
// A request's rank is its virtual start: the clock, or the virtual finish of its client's request before it where that
// is later. So the n-th waiting request of a busy client stands n turns behind the clock, and an occasional client goes
// before most of them. With one client, ranks ascend in order of admission: first come, first served.
//
// Bound. The clock follows the requests that start, and it also moves with each admission. So a request that has n of
// its client's before it is passed by at most kTurn * n requests that are admitted after it, however many clients
// there are.
//
// Clients are distinguished by a hash of their name: two that share a place count as one. Nothing is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "dispatch/request.h"

namespace arlo::dispatch {

class FairRanks {
 public:
  // Even or odd ties (0, 1): no rank of the one is of the other.
  explicit FairRanks(std::uint64_t ties) : ties_(ties) {}

  // Where a client's finish stands; fits 16 bits.
  static std::uint64_t place(std::uint64_t client) { return client * 0x9e3779b97f4a7c15U >> (64 - kPlaceBits); }

  // Returns the rank of an arrival now, for the client at this place. 47 bits of virtual time last for 10^12 requests.
  [[nodiscard]] Rank next(std::uint64_t place) const {
    return kFirstTry | std::max(clock_, finish_[place]) << kTieBits | (ties_ & kTies);
  }

  // It has been admitted with this rank.
  void admitted(std::uint64_t place, Rank rank) {
    finish_[place] = start_of(rank) + kTurn;
    ties_ += 2;
    ++clock_;
  }

  void started(Rank rank) { clock_ = std::max(clock_, start_of(rank)); }

 private:
  static constexpr std::uint64_t kTurn = 16;  // of the virtual clock, for one request
  static constexpr int kTieBits = 16;
  static constexpr std::uint64_t kTies = (std::uint64_t{1} << kTieBits) - 1;
  static constexpr int kPlaceBits = 10;

  static std::uint64_t start_of(Rank rank) { return (rank & ~kFirstTry) >> kTieBits; }

  std::uint64_t clock_ = 1;
  std::uint64_t ties_;                                                // grows with each admission
  std::array<std::uint64_t, std::size_t{1} << kPlaceBits> finish_{};  // by place; that of unnamed clients comes first
};

}  // namespace arlo::dispatch
