#include "loadgen/report.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

namespace arlo::loadgen {

namespace {

using nlohmann::json;

// A server's message may have any bytes.
std::string Line(const json& line) { return line.dump(-1, ' ', false, json::error_handler_t::replace); }

// Messages that differ in their numbers alone, such as predicted times, are of one kind.
std::string WithoutNumbers(const std::string& message) {
  std::string kind;
  for (const char c : message) {
    if (c < '0' || c > '9') {
      kind += c;
    } else if (kind.empty() || kind.back() != '#') {
      kind += '#';
    }
  }
  return kind;
}

}  // namespace

size_t Histogram::Bucket(int64_t us) {
  if (us < kSub) return static_cast<size_t>(std::max<int64_t>(us, 0));
  const int octave = std::bit_width(static_cast<uint64_t>(us)) - 6;  // 32..63 is octave 0
  const size_t sub = static_cast<size_t>(us >> octave) - kSub;
  return std::min<size_t>(static_cast<size_t>(kSub * (octave + 1)) + sub, kBuckets - 1);
}

int64_t Histogram::Middle(size_t bucket) {
  if (bucket < kSub) return static_cast<int64_t>(bucket);
  const size_t octave = bucket / kSub - 1;
  const int64_t low = static_cast<int64_t>(bucket % kSub + kSub) << octave;
  return low + ((int64_t{1} << octave) >> 1);
}

Histogram::Window Histogram::Take() {
  std::array<uint64_t, kBuckets> fresh;
  Window window;
  for (size_t i = 0; i < kBuckets; ++i) {
    const uint64_t now = counts_[i].load(std::memory_order_relaxed);
    fresh[i] = now - taken_[i];
    taken_[i] = now;
    window.count += fresh[i];
  }
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets && seen < window.count; ++i) {
    const uint64_t before = seen;
    seen += fresh[i];
    const auto crosses = [&](uint64_t percent) {
      const uint64_t rank = std::max<uint64_t>(1, (window.count * percent + 99) / 100);
      return before < rank && rank <= seen;
    };
    if (crosses(50)) window.p50_us = Middle(i);
    if (crosses(98)) window.p98_us = Middle(i);
  }
  return window;
}

void Report::Sent(int64_t delay_us) {
  sent_.fetch_add(1, std::memory_order_relaxed);
  if (delay_us > late_us_) late_sends_.fetch_add(1, std::memory_order_relaxed);
  int64_t max = max_delay_us_.load(std::memory_order_relaxed);
  while (delay_us > max && !max_delay_us_.compare_exchange_weak(max, delay_us, std::memory_order_relaxed)) {
  }
}

void Report::Done(uint8_t code, int64_t latency_us) {
  done_.fetch_add(1, std::memory_order_relaxed);
  codes_[std::min<size_t>(code, kCodes - 1)].fetch_add(1, std::memory_order_relaxed);
  if (code != 0) return;
  latency_.Add(latency_us);
  if (slo_us_ == 0 || latency_us <= slo_us_) on_time_.fetch_add(1, std::memory_order_relaxed);
}

uint8_t Report::Error(uint8_t code, const std::string& message) {
  const std::string kind = WithoutNumbers(message);
  const std::lock_guard lock(mutex_);
  size_t at = errors_.size(), of_code = errors_.size();
  for (size_t i = 0; i < errors_.size(); ++i) {
    if (errors_[i].code != code) continue;
    of_code = std::min(of_code, i);
    if (errors_[i].kind == kind) at = std::min(at, i);
  }
  if (at == errors_.size() && errors_.size() >= kMaxErrors) at = of_code;
  if (at == errors_.size()) errors_.push_back({code, message, kind, 0});
  ++errors_[at].count;
  return static_cast<uint8_t>(at + 1);
}

json Report::Counters(const char* type) const {
  const uint64_t done = this->done(), sent = this->sent();
  json codes = json::object();
  for (size_t i = 0; i < kCodes; ++i) {
    const uint64_t n = codes_[i].load(std::memory_order_relaxed);
    if (n != 0) codes[std::to_string(i)] = n;
  }
  return {{"type", type},
          {"total", total_},
          {"sent", sent},
          {"done", done},
          {"in_flight", sent > done ? sent - done : 0},
          {"on_time", on_time_.load(std::memory_order_relaxed)},
          {"codes", codes},
          {"late_sends", late_sends_.load(std::memory_order_relaxed)},
          {"max_delay_us", max_delay_us_.load(std::memory_order_relaxed)}};
}

std::string Report::Progress(double t_s) {
  const Histogram::Window recent = latency_.Take();
  const double span = std::max(t_s - last_progress_s_, 1e-3);
  last_progress_s_ = t_s;
  json line = Counters("progress");
  line["t_s"] = t_s;
  line["recent"] = {{"answered_per_s", static_cast<double>(recent.count) / span},
                    {"p50_us", recent.p50_us},
                    {"p98_us", recent.p98_us}};
  return Line(line);
}

std::string Report::Final(double duration_s, double cpu_s, bool interrupted, bool undrained) {
  json line = Counters("done");
  line["duration_s"] = duration_s;
  line["cpu_s"] = cpu_s;
  line["interrupted"] = interrupted;
  line["undrained"] = undrained;
  line["errors"] = json::array();
  const std::lock_guard lock(mutex_);
  for (const DistinctError& e : errors_) {
    line["errors"].push_back({{"code", e.code}, {"message", e.message}, {"count", e.count}});
  }
  return Line(line);
}

}  // namespace arlo::loadgen
