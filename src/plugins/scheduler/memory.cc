#include "plugins/scheduler/memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "plugins/triton_errors.h"

namespace arlo::triton {
namespace {

// Of the CUDA runtime, by value: its headers come in no package that is wanted here.
constexpr int kSuccess = 0;
constexpr int kAnyDirection = 4;                           // cudaMemcpyDefault
void* const kThreadStream = reinterpret_cast<void*>(0x2);  // cudaStreamPerThread: waits for no other thread's kernels

using MemcpyAsync = int (*)(void*, const void*, std::size_t, int, void*);
using Synchronize = int (*)(void*);

struct Cuda {
  MemcpyAsync copy = nullptr;
  Synchronize synchronize = nullptr;
};

Cuda Load() {
  void* runtime = nullptr;
  for (const int flags : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY}) {  // the server's loaded library goes first
    for (const char* const name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
      if (runtime == nullptr) runtime = dlopen(name, flags);
    }
  }
  if (runtime == nullptr) return {};
  return {reinterpret_cast<MemcpyAsync>(dlsym(runtime, "cudaMemcpyAsync")),
          reinterpret_cast<Synchronize>(dlsym(runtime, "cudaStreamSynchronize"))};
}

const Cuda& TheCuda() {
  static const Cuda cuda = Load();
  return cuda;
}

bool CopyByCuda(void* to, const void* from, std::size_t bytes) {
  const Cuda& cuda = TheCuda();
  return cuda.copy(to, from, bytes, kAnyDirection, kThreadStream) == kSuccess &&
         cuda.synchronize(kThreadStream) == kSuccess;
}

}  // namespace

DeviceCopy CudaCopy() {
  const Cuda& cuda = TheCuda();
  return cuda.copy != nullptr && cuda.synchronize != nullptr ? CopyByCuda : nullptr;
}

void Memory::Free::operator()(char* data) const {
  if (manager == nullptr) {
    delete[] data;
  } else {
    LogAndDelete(TRITONBACKEND_MemoryManagerFree(manager, data, TRITONSERVER_MEMORY_CPU_PINNED, 0));
  }
}

Memory::Memory(TRITONBACKEND_MemoryManager* manager, DeviceCopy copy) : manager_(manager), copy_(copy) {
  if (!Pinned(1).get_deleter().manager) manager_ = nullptr;
}

Memory::Block Memory::Pinned(std::size_t bytes) const {
  if (manager_ != nullptr) {
    void* data = nullptr;
    TRITONSERVER_Error* const error = TRITONBACKEND_MemoryManagerAllocate(
        manager_, &data, TRITONSERVER_MEMORY_CPU_PINNED, 0, std::max<std::size_t>(bytes, 1));
    if (error == nullptr) return {static_cast<char*>(data), Free{manager_}};
    TRITONSERVER_ErrorDelete(error);  // none is left
  }
  return Heap(bytes);
}

Memory::Block Memory::Heap(std::size_t bytes) { return {new char[std::max<std::size_t>(bytes, 1)], Free{}}; }

Place Memory::PlaceOf(const Block& block) {
  return {block.get_deleter().manager != nullptr ? TRITONSERVER_MEMORY_CPU_PINNED : TRITONSERVER_MEMORY_CPU, 0};
}

TRITONSERVER_Error* Memory::Copy(void* to, Place to_place, const void* from, Place from_place,
                                 std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  if (to_place.on_host() && from_place.on_host()) {
    std::memcpy(to, from, bytes);
    return nullptr;
  }
  if (copy_ == nullptr) {
    return NewError(TRITONSERVER_ERROR_UNSUPPORTED,
                    "a tensor is in GPU memory, and this process has no CUDA runtime (libcudart) to copy it with: use "
                    "system shared memory, or none");
  }
  if (copy_(to, from, bytes)) return nullptr;
  return NewError(TRITONSERVER_ERROR_INTERNAL, "a copy from or to GPU memory failed");
}

}  // namespace arlo::triton
