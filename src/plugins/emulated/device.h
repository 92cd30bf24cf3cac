#ifndef ARLO_TRITON_EMULATED_DEVICE_H_
#define ARLO_TRITON_EMULATED_DEVICE_H_

#include <cstdint>
#include <mutex>
#include <string>

namespace arlo::triton {

// The device that all emulated runtimes of one server share, as they would a GPU: its time, its memory and its speed.
// For tests of loads that do not fit and of workers that become slow. Set by the environment of the server:
//   ARLO_EMULATED_MEMORY_MB  memory of the device; a runtime that no longer fits is not loaded. Unset: no limit
//   ARLO_EMULATED_SLOW_DIR   a folder: while it has a file `slow.PID` with this server's process id, every latency is
//                            multiplied by the number in it; below 0 every execution fails at once, as after an error
//                            that a device does not recover from. A restarted server has another id, so it is well
//                            again
//
// Thread-safe.
class EmulatedDevice {
 public:
  // memory_mb < 0: no limit. An empty slow_file: always as fast as the latency profile says.
  EmulatedDevice(int64_t memory_mb, std::string slow_file);

  // Reads the environment.
  static EmulatedDevice FromEnvironment();

  // Takes memory for a runtime. Returns an empty string, or why not.
  std::string Take(int64_t memory_mb);
  void GiveBack(int64_t memory_mb);

  // Held while computing: one batch of one runtime at a time.
  std::mutex& Computing() { return computing_; }

  // The factor of every latency; below 0: executions fail. The file is read at most every 100 ms.
  double Slowdown(int64_t now_ns);

 private:
  const int64_t memory_mb_;
  const std::string slow_file_;
  std::mutex mutex_;
  std::mutex computing_;
  int64_t taken_mb_ = 0;
  int64_t next_look_ns_ = 0;
  double slowdown_ = 1;
};

// The device of this process.
EmulatedDevice& TheDevice();

}  // namespace arlo::triton

#endif  // ARLO_TRITON_EMULATED_DEVICE_H_
