// Requests that can no longer be on time, and whose answer is still wanted: one line for each ideal level.
//
// They yield to requests that can be on time: an instance takes one when it is otherwise idle, and once in a
// fixed number of turns, so that they also move under a lasting overload (turns.h). The pace of such a line is measured
// from the requests that leave it for an instance; it predicts how long a newcomer would wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dispatch/lines/level_fifos.h"
#include "dispatch/request.h"

namespace arlo::dispatch {

class OverdueLines {
 public:
  [[nodiscard]] std::int32_t total() const { return lines_.total(); }
  [[nodiscard]] std::int32_t total(VariantId variant) const { return lines_.total(variant); }
  [[nodiscard]] const LevelFifos::Line& operator[](std::int32_t level) const { return lines_[level]; }
  [[nodiscard]] RequestHandle front(std::int32_t first, std::int32_t last) const { return lines_.front(first, last); }

  void insert(RequestSlab& requests, std::int32_t level, RequestHandle handle, TimeNs now) {
    Moves& moves = moves_[static_cast<std::size_t>(level)];
    if (lines_[level].count == 0) {
      moves.last = now;
      if (now - moves.newest > kPause) moves.since = now;
    }
    moves.newest = now;
    lines_.insert(requests, level, handle);
  }
  void erase(RequestSlab& requests, std::int32_t level, RequestHandle handle) { lines_.erase(requests, level, handle); }
  // One of this level, still in line, starts now. A gap longer than `longest` is a stall (a worker hangs or is
  // replaced), and no pace.
  void starts(std::int32_t level, TimeNs longest, TimeNs now) {
    Moves& moves = moves_[static_cast<std::size_t>(level)];
    const TimeNs took = std::min(now - moves.last, longest);
    moves.each = moves.each == 0 ? took : (7 * moves.each + took) / 8;
    moves.last = now;
  }

  // Returns how long a newcomer would wait for its turn: for the rows ahead at the line's pace, plus the time it has
  // stood still. A line's pace is trusted once it has lasted as long as the newcomer could wait (`spare`), or kTrust:
  // within that time a hung or dead worker is replaced and its rows are served. `more`: rows that come with it.
  [[nodiscard]] TimeNs wait(std::int32_t level, TimeNs now, TimeNs spare, std::int32_t more = 0) const {
    constexpr TimeNs kTrust = 10'000'000'000;
    constexpr std::int32_t kMany = 1'000'000;
    constexpr TimeNs kLong = 1'000'000'000'000;  // their product fits
    const std::int32_t ahead = lines_[level].count;
    const Moves& moves = moves_[static_cast<std::size_t>(level)];
    if (ahead == 0 || now - moves.since < std::min(kTrust, spare)) return 0;
    const TimeNs stands = now - moves.last;
    const TimeNs each = moves.each == 0 ? stands : moves.each;
    return std::min(ahead + more, kMany) * std::min(each, kLong) + std::max<TimeNs>(stands - each, 0);
  }

  // Of levels `first` to before `end`, the one that would have to wait longest; kNone when there is none.
  [[nodiscard]] RequestHandle last(std::int32_t first, std::int32_t end) const {
    RequestHandle last = kNone;
    Rank most = 0;
    for (std::int32_t level = first; level < end; ++level) {
      const LevelFifos::Line& line = lines_[level];
      if (line.count == 0 || (last != kNone && line.last <= most)) continue;
      last = line.fifo.tail;
      most = line.last;
    }
    return last;
  }

  void insert_level(RequestSlab& requests, std::int32_t level, std::int32_t max_length, bool longest) {
    lines_.insert_level(requests, level, max_length, longest);
    // Rows that move down to it have moved at the pace of the line above.
    const Moves above = longest ? Moves{} : moves_[static_cast<std::size_t>(level)];
    moves_.insert(moves_.begin() + level, above);
  }

 private:
  struct Moves {
    TimeNs since = 0;   // when the line began, but for short pauses
    TimeNs newest = 0;  // when the last one came
    TimeNs last = 0;    // when one started, or the line began
    TimeNs each = 0;    // between two that start, faded
  };
  static constexpr TimeNs kPause = 1'000'000'000;
  LevelFifos lines_;
  std::vector<Moves> moves_;  // by level
};

}  // namespace arlo::dispatch
