// Addresses as the configuration writes them: host:port, [IPv6]:port, unix:PATH.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace arlo::gateway {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// None for what is not host:port.
std::optional<HostPort> parse_address(std::string_view address);

// The path of unix:PATH; empty for any other.
std::string unix_path(std::string_view address);

// Only programs on this machine reach it.
bool is_local(std::string_view address);

}  // namespace arlo::gateway
