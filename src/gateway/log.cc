#include "gateway/log.h"

#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/clock.h"

namespace arlo::gateway {
namespace {
std::atomic<LogLevel> threshold{LogLevel::kInfo};
constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};

// Strangers can provoke library logs, one line per bad header. So only some are written per second, and one line counts
// the rest.
class Ration {
 public:
  // Whether one more line may be written now; `left_out` is set to the number suppressed before it.
  bool take(TimeNs now, std::int64_t* left_out) {
    constexpr TimeNs kPeriod = 1'000'000'000;
    constexpr int kLines = 20;
    const std::lock_guard lock(mutex_);
    if (now - begin_ >= kPeriod) {
      begin_ = now;
      lines_ = 0;
    }
    if (lines_ == kLines) {
      ++left_out_;
      return false;
    }
    ++lines_;
    *left_out = std::exchange(left_out_, 0);
    return true;
  }

 private:
  std::mutex mutex_;
  TimeNs begin_ = 0;
  int lines_ = 0;
  std::int64_t left_out_ = 0;
};

}  // namespace

void capture_library_logs() {
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel severity, const char* file, int line,
                                     const std::string& message) {
    const auto level = severity == google::protobuf::LOGLEVEL_INFO      ? LogLevel::kInfo
                       : severity == google::protobuf::LOGLEVEL_WARNING ? LogLevel::kWarning
                                                                        : LogLevel::kError;
    log_some(level, "protobuf", {{"message", message}, {"file", std::string_view(file)}, {"line", std::int64_t{line}}});
  });
}

void log_some(LogLevel level, std::string_view event,
              std::initializer_list<std::pair<std::string_view, LogValue>> fields) {
  static Ration ration;
  if (level < threshold.load(std::memory_order_relaxed)) return;
  std::int64_t left_out = 0;
  if (!ration.take(now_ns(), &left_out)) return;
  if (left_out != 0) log(LogLevel::kWarning, "lines_left_out", {{"count", left_out}});
  log(level, event, fields);
}

LogLevel parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  throw std::invalid_argument("log_level '" + std::string(name) + "' is not one of debug, info, warning, error");
}

void set_log_level(LogLevel level) { threshold.store(level, std::memory_order_relaxed); }

bool logs(LogLevel level) { return level >= threshold.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view event, std::initializer_list<std::pair<std::string_view, LogValue>> fields) {
  if (level < threshold.load(std::memory_order_relaxed)) return;
  nlohmann::ordered_json line;
  line["ts"] = static_cast<double>(unix_ms()) / 1000.0;
  line["level"] = kNames[static_cast<std::size_t>(level)];
  line["component"] = "gateway";
  line["event"] = event;
  for (const auto& [key, value] : fields) {
    std::visit([&line, name = std::string(key)](const auto& v) { line[name] = v; }, value);
  }
  // Workers' texts may hold any bytes: replace invalid UTF-8. One write per line keeps lines whole.
  std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace arlo::gateway
