// Preloaded into Triton servers: a Python model ends at once when it is unloaded, instead of after a second.
//
// Triton's Python backend (2.51) ends a model's process as follows: it clears the process's sign of life, sleeps for a
// second, and checks whether the process has set it again, to decide between asking it to finalize and killing it. For
// that second the engine's memory is taken and the worker serves nothing. All requests have been answered by then, and
// the end of the process frees all it holds, so the backend's sleep is cut short here: the backend considers the
// process hung and kills it (TritonPythonModel.finalize is not called). It is the only sleep() in that backend; all
// others are passed on. This holds for the version examined, so the library is preloaded for that one only, known by
// its hash (arlo/workers/triton/preload.py). Needs nothing but the C library, so that no other library is loaded
// ahead of the server's libraries.

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

namespace {

constexpr timespec kInstead{.tv_sec = 0, .tv_nsec = 1'000'000};

bool is_python_backend(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* name = std::strrchr(info.dli_fname, '/');
  return name != nullptr && std::strcmp(name, "/libtriton_python.so") == 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) unsigned int sleep(unsigned int seconds) {
  if (is_python_backend(__builtin_return_address(0))) {
    nanosleep(&kInstead, nullptr);
    return 0;
  }
  return reinterpret_cast<unsigned int (*)(unsigned int)>(dlsym(RTLD_NEXT, "sleep"))(seconds);
}
