// Small pieces of memory: used again by the thread that has a list, bounded, and libc's own where there is none.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/small_memory.h"

namespace arlo {
namespace {

TEST(SmallMemory, TheSamePieceAgain) {
  const SmallMemory here;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{32}, std::size_t{33}, std::size_t{1000}, SmallMemory::kLargest}) {
    void* const first = SmallMemory::take(bytes);
    const auto where = reinterpret_cast<std::uintptr_t>(first);
    std::memset(first, 1, bytes);
    SmallMemory::give(first, bytes);
    void* const again = SmallMemory::take(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(again), where) << bytes;
    SmallMemory::give(again, bytes);
  }
}

TEST(SmallMemory, SizesThatShareAListAreAllAsLarge) {
  const SmallMemory here;
  for (std::size_t bytes = 1; bytes <= SmallMemory::kLargest; ++bytes) {
    void* const piece = SmallMemory::take(bytes);
    std::memset(piece, 1, bytes);  // a sanitizer sees whether it is large enough
    SmallMemory::give(piece, bytes);
  }
}

TEST(SmallMemory, KeepsSoMuchAndNoMore) {
  const SmallMemory here;
  for (const std::size_t bytes : {std::size_t{24}, std::size_t{600}, std::size_t{4000}}) {
    const std::size_t kept = SmallMemory::kKept / ((bytes + 31) / 32 * 32);
    std::vector<void*> pieces;
    pieces.reserve(kept + 50);
    for (std::size_t i = 0; i < kept + 50; ++i) pieces.push_back(SmallMemory::take(bytes));
    EXPECT_EQ(SmallMemory::kept(), 0U);
    for (void* piece : pieces) SmallMemory::give(piece, bytes);
    EXPECT_EQ(SmallMemory::kept(), kept * ((bytes + 31) / 32 * 32));
    for (std::size_t i = 0; i < kept; ++i) pieces[i] = SmallMemory::take(bytes);
    EXPECT_EQ(SmallMemory::kept(), 0U);
    for (std::size_t i = 0; i < kept; ++i) std::free(pieces[i]);  // it is libc's
  }
}

TEST(SmallMemory, OfOneThreadToAnother) {
  const SmallMemory here;
  void* const mine = SmallMemory::take(100);
  std::thread([mine] {
    SmallMemory::give(mine, 100);  // no list here
    EXPECT_EQ(SmallMemory::kept(), 0U);
    const SmallMemory there;
    SmallMemory::give(SmallMemory::take(100), 100);
    EXPECT_EQ(SmallMemory::kept(), 128U);
  }).join();
  EXPECT_EQ(SmallMemory::kept(), 0U);
}

TEST(SmallMemory, LargeOnesAreNotKept) {
  const SmallMemory here;
  SmallMemory::give(SmallMemory::take(SmallMemory::kLargest + 1), SmallMemory::kLargest + 1);
  EXPECT_EQ(SmallMemory::kept(), 0U);
}

}  // namespace
}  // namespace arlo
