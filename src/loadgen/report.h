// Reports on a run in progress: counters, recent percentiles, distinct errors. JSON lines on stdout.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace arlo::loadgen {

// Latencies in microseconds, 32 buckets per octave (3 % wide). Any thread adds; one thread takes new values.
class Histogram {
 public:
  void Add(int64_t us) { counts_[Bucket(us)].fetch_add(1, std::memory_order_relaxed); }

  struct Window {
    uint64_t count = 0;
    int64_t p50_us = 0;
    int64_t p98_us = 0;
  };
  // Returns statistics of the values added since the last call.
  Window Take();

 private:
  static constexpr int kSub = 32;
  static constexpr int kBuckets = kSub * 40;
  static size_t Bucket(int64_t us);
  static int64_t Middle(size_t bucket);

  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::array<uint64_t, kBuckets> taken_{};
};

// Shared by the threads of one run; every member may be used from any thread, except Progress (one thread).
class Report {
 public:
  Report(uint64_t total, int64_t slo_us, int64_t late_us) : total_(total), slo_us_(slo_us), late_us_(late_us) {}

  // `delay_us`: sent after it was scheduled.
  void Sent(int64_t delay_us);
  void Done(uint8_t code, int64_t latency_us);
  // The place of this error among the distinct ones, from 1: the first message of its kind. Beyond kMaxErrors kinds it
  // counts as the first one with its code.
  uint8_t Error(uint8_t code, const std::string& message);

  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }

  std::string Progress(double t_s);
  std::string Final(double duration_s, double cpu_s, bool interrupted, bool undrained);

 private:
  struct DistinctError {
    uint8_t code;
    std::string message;
    std::string kind;  // the message without its numbers
    uint64_t count;
  };
  static constexpr size_t kMaxErrors = 64;
  static constexpr size_t kCodes = 17;

  nlohmann::json Counters(const char* type) const;

  const uint64_t total_;
  const int64_t slo_us_;
  const int64_t late_us_;
  std::atomic<uint64_t> sent_{0}, done_{0}, on_time_{0}, late_sends_{0};
  std::atomic<int64_t> max_delay_us_{0};
  std::array<std::atomic<uint64_t>, kCodes> codes_{};
  Histogram latency_;
  std::mutex mutex_;
  std::vector<DistinctError> errors_;
  double last_progress_s_ = 0;
};

}  // namespace arlo::loadgen
