// Preloaded into Triton servers: a Python model ends at once when it is unloaded, instead of after a second.
//
// Triton's Python backend (2.51) ends a model's process so: it clears the process's sign of life, sleeps for a second,
// and looks whether the process has set it again, to know whether it can be asked to finalize or must be killed. For
// that second the engine's memory is taken and the worker serves nothing. All requests have been answered by then, and
// the end of the process frees whatever it holds, so the backend's sleep is cut short here: it takes the process for
// hung and kills it (TritonPythonModel.finalize is not called). It is the only sleep() in that backend; all others are
// passed on. That is true of the back-end that was looked at, so it is preloaded for that one only, known by its hash
// (arlo/workers/triton/preload.py). Needs nothing but the C library, so that no other library is loaded ahead of the
// server's own.

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
