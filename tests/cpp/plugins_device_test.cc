// The emulated device: memory is taken and given back, the slow file is looked at now and then.

#include "plugins/emulated/device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace arlo::triton {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(EmulatedDevice, MemoryIsTakenAndGivenBack) {
  EmulatedDevice device(100, "");
  EXPECT_EQ(device.Take(60), "");
  EXPECT_EQ(device.Take(41), "out of memory: 41 MB wanted, 40 of 100 MB are free");
  EXPECT_EQ(device.Take(40), "");
  EXPECT_EQ(device.Take(0), "");
  device.GiveBack(60);
  EXPECT_EQ(device.Take(60), "");
}

TEST(EmulatedDevice, NoLimit) {
  EmulatedDevice device(-1, "");
  EXPECT_EQ(device.Take(1'000'000'000), "");
  EXPECT_EQ(device.Take(1'000'000'000), "");
}

TEST(EmulatedDevice, SlowFile) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("arlo_slow_test." + std::to_string(getpid()));
  const auto write = [&path](const char* text) { std::ofstream(path) << text; };
  EmulatedDevice device(-1, path.string());
  EXPECT_EQ(device.Slowdown(0), 1);
  write("2.5");
  EXPECT_EQ(device.Slowdown(99 * kMs), 1) << "looked at no more often than every 100 ms";
  EXPECT_EQ(device.Slowdown(100 * kMs), 2.5);
  write("");
  EXPECT_EQ(device.Slowdown(200 * kMs), 2.5) << "half written";
  write("3");
  EXPECT_EQ(device.Slowdown(300 * kMs), 3);
  write("-1");
  EXPECT_EQ(device.Slowdown(400 * kMs), -1) << "executions fail";
  std::filesystem::remove(path);
  EXPECT_EQ(device.Slowdown(499 * kMs), -1);
  EXPECT_EQ(device.Slowdown(500 * kMs), 1);
  EXPECT_EQ(EmulatedDevice(-1, "").Slowdown(0), 1);
}

}  // namespace
}  // namespace arlo::triton
