// Addresses in the form of the configuration: host:port, [IPv6]:port, unix:PATH.
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

// Returns nothing unless it is host:port.
std::optional<HostPort> parse_address(std::string_view address);

// The path of unix:PATH; empty for any other.
std::string unix_path(std::string_view address);

// Whether only programs on this machine can reach it.
bool is_local(std::string_view address);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::string text() const;  // in that form
};

enum class Lookup : std::uint8_t { kNames, kNumbersOnly };

// Resolves an address, best first; looking up names may take seconds. Empty, with the reason in *why, on failure.
std::vector<SocketAddress> resolve(std::string_view address, Lookup lookup, std::string* why);

}  // namespace arlo::transport
