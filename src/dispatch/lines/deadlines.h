// When waiting requests expire: a lazy binary heap by (deadline, rank).
//
// An entry is added when a request with a deadline starts to wait and is not removed when the wait ends; it is skipped
// when it surfaces. When more than half of the entries are stale they are swept out, so that the heap stays within
// twice the waiting requests and each operation is O(log n) amortised.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dispatch/request.h"

namespace arlo::dispatch {

class Deadlines {
 public:
  void wait_begins(RequestSlab& slab, RequestHandle handle) {
    Request& r = slab[handle];
    if (r.deadline == kNever) return;
    if (r.watched) {  // it waited before, and its entry is still here
      --stale_;
      return;
    }
    r.watched = true;
    entries_.push_back({r.deadline, r.order(), handle});
    std::push_heap(entries_.begin(), entries_.end(), later);
  }

  // Before the handle is given back.
  void wait_ends(RequestSlab& slab, RequestHandle handle) {
    if (!slab[handle].watched) return;
    ++stale_;
    if (stale_ > kSweepAbove && stale_ * 2 > entries_.size()) sweep(slab, handle);
  }

  // The next waiting request whose deadline is at or before `now`, without its entry; kNone when there is none.
  RequestHandle pop(RequestSlab& slab, TimeNs now) {
    while (!entries_.empty() && entries_.front().deadline <= now) {
      const Entry top = entries_.front();
      std::pop_heap(entries_.begin(), entries_.end(), later);
      entries_.pop_back();
      if (belongs(slab, top)) {
        Request& r = slab[top.handle];
        r.watched = false;
        if (r.state == RequestState::kWaiting) return top.handle;
      }
      --stale_;
    }
    return kNone;
  }

  [[nodiscard]] TimeNs next() const { return entries_.empty() ? kNever : entries_.front().deadline; }

 private:
  struct Entry {
    TimeNs deadline;
    std::uint64_t order;
    RequestHandle handle;
  };
  static constexpr std::size_t kSweepAbove = 64;

  static bool later(const Entry& a, const Entry& b) {
    return a.deadline != b.deadline ? a.deadline > b.deadline : a.order > b.order;
  }
  // False when the handle has passed to another request.
  static bool belongs(const RequestSlab& slab, const Entry& entry) {
    const Request& r = slab[entry.handle];
    return r.watched && r.order() == entry.order;
  }

  void sweep(RequestSlab& slab, RequestHandle ending) {
    std::erase_if(entries_, [&](const Entry& entry) {
      if (!belongs(slab, entry)) return true;
      Request& r = slab[entry.handle];
      if (r.state == RequestState::kWaiting && entry.handle != ending) return false;
      r.watched = false;
      return true;
    });
    std::make_heap(entries_.begin(), entries_.end(), later);
    stale_ = 0;
  }

  std::vector<Entry> entries_;
  std::size_t stale_ = 0;
};

}  // namespace arlo::dispatch
