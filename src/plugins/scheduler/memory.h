// Memory that rows are gathered in and answers come to: pinned where the server has some, so that an engine's copies to
// and from its GPU need no copy in between; and copies from and to a GPU's memory, where a client's tensors lie there.
//
// The plugin is linked against no CUDA: the copy is the runtime's that the server has loaded, found by name.
#ifndef ARLO_PLUGINS_SCHEDULER_MEMORY_H_
#define ARLO_PLUGINS_SCHEDULER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugins/triton_api.h"

namespace arlo::triton {

struct Place {
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  std::int64_t id = 0;  // of the GPU

  [[nodiscard]] bool on_host() const { return type != TRITONSERVER_MEMORY_GPU; }
};

// Copies bytes where one side, or both, is a GPU's memory, and returns when they are there; false: it failed.
using DeviceCopy = bool (*)(void* to, const void* from, std::size_t bytes);

// By the CUDA runtime of this process; null where there is none.
DeviceCopy CudaCopy();

// Thread-safe. Outlives its blocks.
class Memory {
 public:
  struct Free {
    TRITONBACKEND_MemoryManager* manager = nullptr;  // whose pinned memory it is; null: from the heap
    void operator()(char* data) const;
  };
  using Block = std::unique_ptr<char, Free>;

  // `manager` may be null: no pinned memory.
  Memory(TRITONBACKEND_MemoryManager* manager, DeviceCopy copy);

  // Pinned where there is some left, else from the heap. Not initialised; for 0 bytes too.
  [[nodiscard]] Block Pinned(std::size_t bytes) const;
  [[nodiscard]] static Block Heap(std::size_t bytes);
  [[nodiscard]] static Place PlaceOf(const Block& block);

  // Any places. Returns when the bytes are there; UNSUPPORTED where a GPU's memory cannot be reached.
  TRITONSERVER_Error* Copy(void* to, Place to_place, const void* from, Place from_place, std::size_t bytes) const;

 private:
  TRITONBACKEND_MemoryManager* manager_;  // null as well where its first block could not be had: a server without GPUs
  DeviceCopy copy_;
};

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_MEMORY_H_
