// Requests in a slab, linked into FIFOs: nothing is allocated per request once the slab has grown to the load.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "dispatch/types.h"

namespace arlo::dispatch {

// A request's place among others: in the fair order of fair_ranks.h, retried ones before all others.
using Rank = std::uint64_t;
inline constexpr Rank kFirstTry = Rank{1} << 63;
inline constexpr Rank kLastRank = std::numeric_limits<Rank>::max();  // of no request

struct alignas(64) Request {
  Tag tag = 0;
  TimeNs deadline = kNever;
  TimeNs aim = kNever;  // a finish by then counts as on time: a little before it is due
  Rank rank = 0;        // of State::ranks, or of overdue_ranks; without kFirstTry when it is retried
  TimeNs share = 0;     // what its instance's expected free time holds for it (timed.h)
  RequestHandle prev = kNone;
  RequestHandle next = kNone;    // in its FIFO; the free list when the state is kGone
  InstanceId instance = kNone;   // bound to or started on; kNone otherwise
  InstanceId avoid = kNone;      // while it waits: the instance to avoid when there is a choice; started: its batch
  std::int32_t length : 22 = 0;  // tokens
  std::uint32_t variant_ : 10 = 0;
  std::uint16_t client = 0;  // its place in FairRanks
  RequestState state = RequestState::kGone;
  bool watched : 1 = false;  // has an entry in the deadline heap
  bool overdue : 1 = false;  // it cannot be on time any more
  bool evicted : 1 = false;  // rows worth more go before it (batch_chooser.h)
  // It failed in a batch and goes only with others of the same value: at most 2^(trial - 1) of them. 0: with any.
  std::uint8_t trial : 5 = 0;

  [[nodiscard]] VariantId variant() const { return static_cast<VariantId>(variant_); }
  [[nodiscard]] BatchId batch() const { return avoid; }  // of a started one; kNone: alone
  [[nodiscard]] std::uint64_t order() const { return rank & ~kFirstTry; }
  // Returns the time by which it has to finish to wait among those that can be on time; kNever: no time limits.
  [[nodiscard]] TimeNs limit() const { return std::min(aim, deadline); }
};

static_assert(sizeof(Request) == 64);  // one cache line

class RequestSlab {
 public:
  Request& operator[](RequestHandle handle) { return requests_[handle]; }
  const Request& operator[](RequestHandle handle) const { return requests_[handle]; }

  [[nodiscard]] RequestState state(RequestHandle handle) const {
    return handle < requests_.size() ? requests_[handle].state : RequestState::kGone;
  }

  // Moves the slab when it grows: references to requests do not survive this call.
  RequestHandle take() {
    if (free_ == kNone) {
      requests_.emplace_back();
      return static_cast<RequestHandle>(requests_.size() - 1);
    }
    const RequestHandle handle = free_;
    free_ = requests_[handle].next;
    return handle;
  }

  void give_back(RequestHandle handle) {
    Request& r = requests_[handle];
    r.state = RequestState::kGone;
    r.watched = false;
    r.next = free_;
    free_ = handle;
  }

 private:
  std::vector<Request> requests_;
  RequestHandle free_ = kNone;  // the last one given back is the next one taken: it is still in the cache
};

// The batches of more than one row that are started.
class Batches {
 public:
  struct Batch {
    std::int32_t rows = 0;  // that are still on their instance
    bool answered = true;   // with a good answer, all that have ended
    RuntimeId runtime = kNone;
    TimeNs time = 0;    // by the profile
    TimeNs shares = 0;  // sum of those of its rows in full batches; 0: nothing was left waiting when it started
  };
  Batch& operator[](BatchId id) { return batches_[id]; }

  BatchId take(Batch batch) {
    if (free_.empty()) {
      batches_.push_back(batch);
      return static_cast<BatchId>(batches_.size() - 1);
    }
    const BatchId id = free_.back();
    free_.pop_back();
    batches_[id] = batch;
    return id;
  }
  void give_back(BatchId id) { free_.push_back(id); }

 private:
  std::vector<Batch> batches_;
  std::vector<BatchId> free_;
};

// An intrusive doubly linked list over the slab.
struct Fifo {
  RequestHandle head = kNone;
  RequestHandle tail = kNone;

  [[nodiscard]] bool empty() const { return head == kNone; }

  // Between `before` and what follows it; kNone: at the front.
  void insert_after(RequestSlab& slab, RequestHandle before, RequestHandle handle) {
    Request& r = slab[handle];
    r.prev = before;
    r.next = before == kNone ? head : slab[before].next;
    (r.prev == kNone ? head : slab[r.prev].next) = handle;
    (r.next == kNone ? tail : slab[r.next].prev) = handle;
  }

  void push_back(RequestSlab& slab, RequestHandle handle) { insert_after(slab, tail, handle); }

  // Inserts in order of rank. O(1) for the newest request, O(retried ones) for a retried one, and O(requests passed)
  // where several clients wait.
  void insert(RequestSlab& slab, RequestHandle handle) {
    const Rank rank = slab[handle].rank;
    RequestHandle before = tail;
    if ((rank & kFirstTry) != 0) {
      while (before != kNone && slab[before].rank > rank) before = slab[before].prev;
    } else {
      before = kNone;
      for (RequestHandle at = head; at != kNone && slab[at].rank < rank; at = slab[at].next) before = at;
    }
    insert_after(slab, before, handle);
  }

  void erase(RequestSlab& slab, RequestHandle handle) {
    const Request& r = slab[handle];
    (r.prev == kNone ? head : slab[r.prev].next) = r.next;
    (r.next == kNone ? tail : slab[r.next].prev) = r.prev;
  }
};

}  // namespace arlo::dispatch
