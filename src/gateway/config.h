// The gateway's configuration file: protobuf JSON of arlo.v1.GatewayConfig, every field present.
#pragma once

#include <arlo/v1/config.pb.h>

#include <string>

namespace arlo::gateway {

// Throws std::invalid_argument naming the field that is missing, unknown or out of range.
v1::GatewayConfig load_config(const std::string& path);

// Reads a secret from a file, without surrounding white space; throws std::invalid_argument.
std::string read_secret(const std::string& path);
std::string read_file(const std::string& path);

}  // namespace arlo::gateway
