// Replaces operator new and delete: threads of the data path keep small pieces of memory for reuse
// (base/small_memory.h).
#include <malloc.h>

#include <new>

#include "base/small_memory.h"

// NOLINTBEGIN(misc-new-delete-overloads): those for arrays and those that do not throw call these
void* operator new(std::size_t bytes) {
  for (;;) {
    if (void* const memory = arlo::SmallMemory::take(bytes)) return memory;
    if (const auto more = std::get_new_handler()) {
      more();
    } else {
      throw std::bad_alloc();
    }
  }
}

void operator delete(void* memory, std::size_t bytes) noexcept {
  if (memory != nullptr) arlo::SmallMemory::give(memory, bytes);
}

// For nghttp2 and libraries that do not pass the size: it is taken from the allocator.
void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  const std::size_t usable = malloc_usable_size(memory);
  arlo::SmallMemory::give(memory, usable - usable % arlo::SmallMemory::kStep);
}
// NOLINTEND(misc-new-delete-overloads)
