#include "loadgen/report.h"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace arlo::loadgen {

namespace {

std::string Quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6f", s);
  return text;
}

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

std::string Report::Counters() const {
  const uint64_t done = this->done(), sent = this->sent();
  std::string codes;
  for (size_t i = 0; i < kCodes; ++i) {
    const uint64_t n = codes_[i].load(std::memory_order_relaxed);
    if (n == 0) continue;
    if (!codes.empty()) codes += ',';
    codes += '"' + std::to_string(i) + "\":" + std::to_string(n);
  }
  return "\"total\":" + std::to_string(total_) + ",\"sent\":" + std::to_string(sent) +
         ",\"done\":" + std::to_string(done) + ",\"in_flight\":" + std::to_string(sent > done ? sent - done : 0) +
         ",\"on_time\":" + std::to_string(on_time_.load(std::memory_order_relaxed)) + ",\"codes\":{" + codes +
         "},\"late_sends\":" + std::to_string(late_sends_.load(std::memory_order_relaxed)) +
         ",\"max_delay_us\":" + std::to_string(max_delay_us_.load(std::memory_order_relaxed));
}

std::string Report::Progress(double t_s) {
  const Histogram::Window recent = latency_.Take();
  const double span = std::max(t_s - last_progress_s_, 1e-3);
  last_progress_s_ = t_s;
  return "{\"type\":\"progress\",\"t_s\":" + Seconds(t_s) + "," + Counters() +
         ",\"recent\":{\"answered_per_s\":" + Seconds(static_cast<double>(recent.count) / span) +
         ",\"p50_us\":" + std::to_string(recent.p50_us) + ",\"p98_us\":" + std::to_string(recent.p98_us) + "}}";
}

std::string Report::Final(double duration_s, double cpu_s, bool interrupted, bool undrained) {
  std::string errors;
  {
    const std::lock_guard lock(mutex_);
    for (const DistinctError& e : errors_) {
      if (!errors.empty()) errors += ',';
      errors += "{\"code\":" + std::to_string(e.code) + ",\"message\":" + Quote(e.message) +
                ",\"count\":" + std::to_string(e.count) + "}";
    }
  }
  return "{\"type\":\"done\"," + Counters() + ",\"duration_s\":" + Seconds(duration_s) +
         ",\"cpu_s\":" + Seconds(cpu_s) + ",\"interrupted\":" + (interrupted ? "true" : "false") +
         ",\"undrained\":" + (undrained ? "true" : "false") + ",\"errors\":[" + errors + "]}";
}

}  // namespace arlo::loadgen
