#include "plugins/emulated/device.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <utility>

namespace arlo::triton {

constexpr int64_t kLookEveryNs = 100'000'000;

EmulatedDevice::EmulatedDevice(int64_t memory_mb, std::string slow_file)
    : memory_mb_(memory_mb), slow_file_(std::move(slow_file)) {}

EmulatedDevice EmulatedDevice::FromEnvironment() {
  const char* memory = std::getenv("ARLO_EMULATED_MEMORY_MB");
  const char* folder = std::getenv("ARLO_EMULATED_SLOW_DIR");
  return EmulatedDevice(memory == nullptr ? -1 : std::strtoll(memory, nullptr, 10),
                        folder == nullptr ? "" : std::string(folder) + "/slow." + std::to_string(getpid()));
}

std::string EmulatedDevice::Take(int64_t memory_mb) {
  const std::lock_guard lock(mutex_);
  if (memory_mb_ >= 0 && memory_mb > memory_mb_ - taken_mb_) {
    return "out of memory: " + std::to_string(memory_mb) + " MB wanted, " + std::to_string(memory_mb_ - taken_mb_) +
           " of " + std::to_string(memory_mb_) + " MB are free";
  }
  taken_mb_ += memory_mb;
  return "";
}

void EmulatedDevice::GiveBack(int64_t memory_mb) {
  const std::lock_guard lock(mutex_);
  taken_mb_ -= memory_mb;
}

double EmulatedDevice::Slowdown(int64_t now_ns) {
  if (slow_file_.empty()) return 1;
  const std::lock_guard lock(mutex_);
  if (now_ns < next_look_ns_) return slowdown_;
  next_look_ns_ = now_ns + kLookEveryNs;
  double factor = 1;
  std::ifstream file(slow_file_);
  // While the file is being written the previous value stays.
  if (file && !(file >> factor)) return slowdown_;
  slowdown_ = factor;
  return slowdown_;
}

EmulatedDevice& TheDevice() {
  static EmulatedDevice device = EmulatedDevice::FromEnvironment();
  return device;
}

}  // namespace arlo::triton
