// Structured logs: one JSON object per line on standard error. {"ts":...,"level":"info","event":"instance_joined",...}
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace arlo::gateway {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

// Throws std::invalid_argument for an unknown name.
LogLevel parse_log_level(std::string_view name);
void set_log_level(LogLevel level);
bool logs(LogLevel level);  // whether lines of this level are written

using LogValue = std::variant<std::string_view, std::int64_t, double, bool>;
// Thread-safe. `event` is a stable name in snake_case; the fields hold the details.
void log(LogLevel level, std::string_view event,
         std::initializer_list<std::pair<std::string_view, LogValue>> fields = {});

// Like log(), for events that others can provoke: writes a few lines a second, and the number suppressed.
void log_some(LogLevel level, std::string_view event,
              std::initializer_list<std::pair<std::string_view, LogValue>> fields);

// Sends the logs of gRPC and protobuf through log() from now on, as events "grpc" and "protobuf".
void capture_library_logs();

}  // namespace arlo::gateway
