// Requests that wait without being bound to an instance: one FIFO for each ideal level. All policies park requests here
// that no active instance fits; `late` keeps all waiting requests here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "dispatch/request.h"

namespace arlo::dispatch {

class LevelFifos {
 public:
  struct Line {
    Fifo fifo;                // by rank
    std::int32_t count = 0;   // requests
    std::int64_t tokens = 0;  // sum of their lengths
    // Ranks of the first and the last, so that no other memory is read to compare lines. Of an empty one no rank is
    // below the first, and none above the last.
    Rank first = kLastRank;
    Rank last = 0;

    [[nodiscard]] std::int32_t mean() const { return static_cast<std::int32_t>(tokens / count); }  // length
  };

  [[nodiscard]] const Line& operator[](std::int32_t level) const { return lines_[static_cast<std::size_t>(level)]; }
  [[nodiscard]] std::int32_t total() const { return total_; }
  [[nodiscard]] std::int32_t total(VariantId variant) const { return total_of_[variant]; }
  [[nodiscard]] std::int64_t tokens(VariantId variant) const { return tokens_of_[variant]; }

  void insert(RequestSlab& requests, std::int32_t level, RequestHandle handle) {
    Line& line = lines_[static_cast<std::size_t>(level)];
    line.fifo.insert(requests, handle);
    line.first = std::min(line.first, requests[handle].rank);
    line.last = std::max(line.last, requests[handle].rank);
    line.tokens += requests[handle].length;
    ++line.count;
    ++total_;
    ++total_of_[requests[handle].variant()];
    tokens_of_[requests[handle].variant()] += requests[handle].length;
  }

  void erase(RequestSlab& requests, std::int32_t level, RequestHandle handle) {
    Line& line = lines_[static_cast<std::size_t>(level)];
    line.fifo.erase(requests, handle);
    line.first = line.fifo.empty() ? kLastRank : requests[line.fifo.head].rank;
    line.last = line.fifo.empty() ? 0 : requests[line.fifo.tail].rank;
    line.tokens -= requests[handle].length;
    --line.count;
    --total_;
    --total_of_[requests[handle].variant()];
    tokens_of_[requests[handle].variant()] -= requests[handle].length;
  }

  // The requests behind a rank in a line. O(requests counted).
  struct Behind {
    std::int32_t count = 0;
    std::int64_t tokens = 0;
  };
  [[nodiscard]] Behind behind(const RequestSlab& requests, std::int32_t level, Rank rank) const {
    Behind behind;
    if ((*this)[level].last <= rank) return behind;
    for (RequestHandle at = (*this)[level].fifo.tail; at != kNone && requests[at].rank > rank; at = requests[at].prev) {
      ++behind.count;
      behind.tokens += requests[at].length;
    }
    return behind;
  }

  [[nodiscard]] bool empty(std::int32_t first, std::int32_t last) const {
    for (std::int32_t level = last; level >= first; --level) {
      if ((*this)[level].count > 0) return false;
    }
    return true;
  }

  // The first by rank of levels `first` to `last`; kNone when all are empty.
  [[nodiscard]] RequestHandle front(std::int32_t first, std::int32_t last) const {
    RequestHandle best = kNone;
    Rank least = kLastRank;
    for (std::int32_t level = first; level <= last; ++level) {
      const Line& line = (*this)[level];
      if (line.first >= least) continue;
      best = line.fifo.head;
      least = line.first;
    }
    return best;
  }

  // A level has been made: requests that fit it move down from the level above, unless it is its variant's longest.
  void insert_level(RequestSlab& requests, std::int32_t level, std::int32_t max_length, bool longest) {
    lines_.insert(lines_.begin() + level, Line{});
    if (longest) return;
    RequestHandle next = kNone;
    for (RequestHandle at = (*this)[level + 1].fifo.head; at != kNone; at = next) {
      next = requests[at].next;
      if (requests[at].length > max_length) continue;
      erase(requests, level + 1, at);
      insert(requests, level, at);
    }
  }

 private:
  std::vector<Line> lines_;
  std::int32_t total_ = 0;
  std::array<std::int32_t, kVariants> total_of_{};
  std::array<std::int64_t, kVariants> tokens_of_{};
};

}  // namespace arlo::dispatch
