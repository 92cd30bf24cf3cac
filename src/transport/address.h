// Addresses as the configuration writes them: host:port, [IPv6]:port, unix:PATH.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace arlo::transport {

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

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::string text() const;  // as above
};

enum class Lookup : std::uint8_t { kNames, kNumbersOnly };

// What an address stands for, best first; names may take seconds to be looked up. Empty, and *why: there is nothing.
std::vector<SocketAddress> resolve(std::string_view address, Lookup lookup, std::string* why);

}  // namespace arlo::transport
