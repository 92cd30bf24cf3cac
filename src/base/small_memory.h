// Recycles a thread's small pieces of memory: a free list for each size, without a lock.
//
// Requests of one thread need the same few dozen sizes again and again, and libc takes ten times as long for each. The
// lists are bounded (kKept bytes of each size, 2 MB in all), so memory that an attack used is returned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace arlo {

class SmallMemory {
 public:
  static constexpr std::size_t kStep = 32;  // between two sizes
  static constexpr std::size_t kLargest = 4096;
  static constexpr std::size_t kKept = 16 << 10;

  // Enables the lists for the calling thread; a thread without them uses libc alone.
  SmallMemory() {
    for (std::size_t list = 0; list < room_.size(); ++list) {
      room_[list] = static_cast<std::uint16_t>(kKept / kStep / (list + 1));
    }
    here_ = this;
  }
  ~SmallMemory() {
    here_ = nullptr;
    for (Free* each : first_) {
      while (each != nullptr) std::free(std::exchange(each, each->next));
    }
  }
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;

  // Returns libc memory of at least that many bytes, which free() accepts as well. Null: out of memory.
  static void* take(std::size_t bytes) {
    if (bytes > kLargest) return std::malloc(bytes);
    const std::size_t list = list_of(bytes);
    if (SmallMemory* const here = here_; here != nullptr && here->first_[list] != nullptr) {
      ++here->room_[list];
      return std::exchange(here->first_[list], here->first_[list]->next);
    }
    return std::malloc((list + 1) * kStep);
  }
  // Takes back memory that take(bytes) returned on any thread.
  static void give(void* memory, std::size_t bytes) {
    SmallMemory* const here = here_;
    const std::size_t list = list_of(bytes);
    if (here == nullptr || list >= here->room_.size() || here->room_[list] == 0) {
      std::free(memory);
      return;
    }
    --here->room_[list];
    here->first_[list] = new (memory) Free{here->first_[list]};
  }
  // Bytes that the calling thread keeps.
  static std::size_t kept() {
    std::size_t bytes = 0;
    for (std::size_t list = 0; here_ != nullptr && list < here_->room_.size(); ++list) {
      bytes += (kKept / kStep / (list + 1) - here_->room_[list]) * (list + 1) * kStep;
    }
    return bytes;
  }

 private:
  struct Free {
    Free* next;
  };

  static std::size_t list_of(std::size_t bytes) { return (bytes - (bytes == 0 ? 0 : 1)) / kStep; }

  std::array<Free*, kLargest / kStep> first_{};
  std::array<std::uint16_t, kLargest / kStep> room_{};  // for so many more
  static inline thread_local constinit SmallMemory* here_ = nullptr;
};

}  // namespace arlo
