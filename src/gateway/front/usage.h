// Counts the use of the data port for /metrics. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace arlo::gateway {

class PortUsage {
 public:
  using Counts = std::map<std::string, std::uint64_t, std::less<>>;

  void connections(int change) { connections_.fetch_add(change, std::memory_order_relaxed); }
  // `limit`: the exceeded limit; text after a colon is a detail.
  void over_limit(std::string_view limit) {
    const std::lock_guard lock(mutex_);
    limit = limit.substr(0, limit.find(':'));
    const auto found = over_limit_.find(limit);
    ++(found != over_limit_.end() ? found->second : over_limit_[std::string(limit)]);
  }

  // Counts answers withheld because the model's numbers were NaN or infinite.
  void not_finite() { not_finite_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t answers_not_finite() const { return not_finite_.load(std::memory_order_relaxed); }

  enum class Trace : std::uint8_t { kSent, kLost };
  void traces(Trace what, std::uint64_t count) {
    traces_[static_cast<std::size_t>(what)].fetch_add(count, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t traces(Trace what) const {
    return traces_[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
  }

  [[nodiscard]] std::int64_t connections() const { return connections_.load(std::memory_order_relaxed); }
  [[nodiscard]] Counts over_limit() const {
    const std::lock_guard lock(mutex_);
    return over_limit_;
  }

 private:
  std::atomic<std::int64_t> connections_{0};
  std::atomic<std::uint64_t> not_finite_{0};
  std::array<std::atomic<std::uint64_t>, 2> traces_{};
  mutable std::mutex mutex_;
  // The known limits, so that each has a line before it is first exceeded.
  Counts over_limit_{{"HTTP/2", 0},
                     {"TLS", 0},
                     {"bytes of headers", 0},
                     {"bytes of requests and answers", 0},
                     {"empty frames", 0},
                     {"pings and settings", 0},
                     {"resets", 0},
                     {"time for a request", 0},
                     {"time for an answer", 0},
                     {"time for headers", 0},
                     {"time for the first words", 0}};
};

}  // namespace arlo::gateway
