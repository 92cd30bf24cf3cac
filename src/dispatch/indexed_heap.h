// An indexed 4-ary min-heap of (key, id) with inline keys.
//
// The order is total, by key and then by id, so the head depends only on the entries and never on the history of the
// heap. Where each id stands is kept in an array outside, shared by all heaps in which an id is at most once. 4-ary
// because four 16-byte entries are one cache line and the tree of 100 instances is 4 deep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace arlo::dispatch {

using HeapPositions = std::vector<std::uint32_t>;  // by id

class IndexedHeap {
 public:
  struct Entry {
    std::uint64_t key;
    std::uint32_t id;
  };

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] const Entry& top() const { return entries_.front(); }

  // The id must not be in the heap. O(log n).
  void push(HeapPositions& positions, std::uint32_t id, std::uint64_t key) {
    entries_.push_back({});
    sift_up(positions.data(), entries_.size() - 1, {key, id});
  }

  // The id must be in the heap. O(log n).
  void erase(HeapPositions& positions, std::uint32_t id) {
    const std::size_t at = positions[id];
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at < entries_.size()) settle(positions.data(), at, last);
  }

  // Gives an id in the heap a new key. O(log n).
  void update(HeapPositions& positions, std::uint32_t id, std::uint64_t key) {
    settle(positions.data(), positions[id], {key, id});
  }

 private:
  static constexpr std::size_t kArity = 4;

  // One 128-bit comparison instead of two branches: ties are common among small integers.
  static bool less(const Entry& a, const Entry& b) { return wide(a) < wide(b); }
  __extension__ using Wide = unsigned __int128;
  static Wide wide(const Entry& e) { return (static_cast<Wide>(e.key) << 64) | e.id; }

  void put(std::uint32_t* positions, std::size_t at, const Entry& entry) {
    entries_[at] = entry;
    positions[entry.id] = static_cast<std::uint32_t>(at);
  }

  void settle(std::uint32_t* positions, std::size_t at, const Entry& entry) {
    if (at > 0 && less(entry, entries_[(at - 1) / kArity])) {
      sift_up(positions, at, entry);
    } else {
      sift_down(positions, at, entry);
    }
  }

  void sift_up(std::uint32_t* positions, std::size_t at, const Entry& entry) {
    while (at > 0) {
      const std::size_t parent = (at - 1) / kArity;
      if (!less(entry, entries_[parent])) break;
      put(positions, at, entries_[parent]);
      at = parent;
    }
    put(positions, at, entry);
  }

  void sift_down(std::uint32_t* positions, std::size_t at, const Entry& entry) {
    const std::size_t size = entries_.size();
    for (;;) {
      const std::size_t first = at * kArity + 1;
      if (first >= size) break;
      std::size_t least = first;
      if (first + kArity <= size) {  // unrolled, no branches: the common case
        const std::size_t a = first + (less(entries_[first + 1], entries_[first]) ? 1 : 0);
        const std::size_t b = first + 2 + (less(entries_[first + 3], entries_[first + 2]) ? 1 : 0);
        least = less(entries_[b], entries_[a]) ? b : a;
      } else {
        for (std::size_t child = first + 1; child < size; ++child) {
          if (less(entries_[child], entries_[least])) least = child;
        }
      }
      if (!less(entries_[least], entry)) break;
      put(positions, at, entries_[least]);
      at = least;
    }
    put(positions, at, entry);
  }

  std::vector<Entry> entries_;
};

}  // namespace arlo::dispatch
