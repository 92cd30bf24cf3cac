#include "gateway/log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/clock.h"

namespace arlo::gateway {
namespace {
std::atomic<LogLevel> threshold{LogLevel::kInfo};
constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};
}  // namespace

void capture_library_logs() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    const auto level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                       : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                 : LogLevel::kDebug;
    log(level, "grpc", {{"message", args->message}, {"file", args->file}, {"line", std::int64_t{args->line}}});
  });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel severity, const char* file, int line, const std::string& message) {
        const auto level = severity == google::protobuf::LOGLEVEL_INFO      ? LogLevel::kInfo
                           : severity == google::protobuf::LOGLEVEL_WARNING ? LogLevel::kWarning
                                                                            : LogLevel::kError;
        log(level, "protobuf", {{"message", message}, {"file", file}, {"line", std::int64_t{line}}});
      });
}

LogLevel parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  throw std::invalid_argument("log_level '" + std::string(name) + "' is not one of debug, info, warning, error");
}

void set_log_level(LogLevel level) { threshold.store(level, std::memory_order_relaxed); }

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
  // Texts of workers may hold any bytes: replace what is not UTF-8. One write a line keeps lines whole.
  std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace arlo::gateway
