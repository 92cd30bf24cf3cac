#include "gateway/config.h"

#include <google/protobuf/util/json_util.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "dispatch/scheduler.h"
#include "gateway/log.h"

namespace arlo::gateway {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Defaults live only in Python, so a missing field is a mistake, not a default.
void require_all_fields(const nlohmann::json& json, const Descriptor& descriptor, const std::string& where) {
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    auto found = json.find(field.name());
    if (found == json.end()) found = json.find(field.json_name());
    if (found == json.end()) throw std::invalid_argument("field '" + where + field.name() + "' is missing");
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_map()) {
      if (!found->is_object()) throw std::invalid_argument("field '" + where + field.name() + "' is not an object");
      require_all_fields(*found, *field.message_type(), where + field.name() + ".");
    }
  }
}

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

void check(const v1::GatewayConfig& config) {
  require(!config.grpc_address().empty(), "grpc_address is empty");
  require(!config.http_address().empty(), "http_address is empty");
  require(!config.admin_address().empty(), "admin_address is empty");
  require(config.max_message_bytes() >= 1024 && config.max_message_bytes() <= 2147483647,
          "max_message_bytes must be 1024 to 2147483647");
  require(config.max_body_bytes() >= 1024 && config.max_body_bytes() <= 2147483647,
          "max_body_bytes must be 1024 to 2147483647");
  require(config.max_attempts() > 0, "max_attempts must be above 0");
  require(config.max_rows() > 0, "max_rows must be above 0");
  require(config.drain_timeout_ms() > 0, "drain_timeout_ms must be above 0");
  const auto& health = config.health();
  require(health.interval_ms() > 0 && health.timeout_ms() > 0 && health.failures() > 0 &&
              health.retry_interval_ms() > 0 && health.silence_ms() > 0,
          "health.interval_ms, timeout_ms, failures, retry_interval_ms and silence_ms must be above 0");
  require(config.tracing().sample() >= 0 && config.tracing().sample() <= 1, "tracing.sample must be 0 to 1");
  const auto& tls = config.tls();
  require(tls.certificate_file().empty() == tls.key_file().empty(),
          "tls.certificate_file and tls.key_file must be given together");
  require(tls.client_ca_file().empty() || !tls.certificate_file().empty(),
          "tls.client_ca_file needs tls.certificate_file and tls.key_file");
  require(config.dispatch().max_queued() <= 100'000'000, "dispatch.max_queued must be at most 100000000");
  static_cast<void>(parse_log_level(config.log_level()));
  static_cast<void>(dispatch::parse_policy(config.dispatch().policy()));
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::invalid_argument("cannot read '" + path + "'");
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string read_secret(const std::string& path) {
  std::string text = read_file(path);
  const auto first = text.find_first_not_of(" \t\r\n");
  const auto last = text.find_last_not_of(" \t\r\n");
  if (first == std::string::npos) throw std::invalid_argument("'" + path + "' holds no token");
  return text.substr(first, last - first + 1);
}

v1::GatewayConfig load_config(const std::string& path) {
  const std::string text = read_file(path);
  v1::GatewayConfig config;
  try {
    const auto json = nlohmann::json::parse(text);
    if (!json.is_object()) throw std::invalid_argument("it is not a JSON object");
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = false;
    const auto status = google::protobuf::util::JsonStringToMessage(text, &config, options);
    if (!status.ok()) throw std::invalid_argument(std::string(status.message()));
    require_all_fields(json, *v1::GatewayConfig::descriptor(), "");
    check(config);
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(path + ": not JSON: " + error.what());
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(path + ": " + error.what());
  }
  return config;
}

}  // namespace arlo::gateway
