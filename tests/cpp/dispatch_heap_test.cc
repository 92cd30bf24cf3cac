#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <utility>

#include "dispatch/indexed_heap.h"

namespace arlo::dispatch {
namespace {

// Against a sorted set, over sizes that fill and break the groups of four.
TEST(IndexedHeap, AgreesWithASortedSet) {
  std::mt19937 random(1);
  constexpr std::uint32_t kIds = 90;
  HeapPositions positions(kIds);
  IndexedHeap heap;
  std::map<std::uint32_t, std::uint64_t> keys;
  std::set<std::pair<std::uint64_t, std::uint32_t>> sorted;
  for (int step = 0; step < 50'000; ++step) {
    const std::uint32_t id = random() % kIds;
    const std::uint64_t key = random() % 8 << (random() % 2 == 0 ? 0 : 61);  // many are equal, and some are large
    const auto known = keys.find(id);
    if (known == keys.end()) {
      heap.push(positions, id, key);
      keys[id] = key;
      sorted.insert({key, id});
    } else {
      sorted.erase({known->second, id});
      if (random() % 4 == 0) {
        heap.erase(positions, id);
        keys.erase(known);
      } else {
        heap.update(positions, id, key);
        known->second = key;
        sorted.insert({key, id});
      }
    }
    ASSERT_EQ(heap.size(), sorted.size());
    if (!sorted.empty()) {
      ASSERT_EQ(std::pair(heap.top().key, heap.top().id), *sorted.begin());
    }
  }
}

}  // namespace
}  // namespace arlo::dispatch
