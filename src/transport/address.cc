#include "transport/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <memory>

namespace arlo::transport {
namespace {
constexpr std::string_view kUnix = "unix:";
}

std::optional<HostPort> parse_address(std::string_view address) {
  const auto colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return {};
  HostPort out;
  const auto port = address.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (error != std::errc() || end != port.data() + port.size() || out.port < 0 || out.port > 65535) return {};
  auto host = address.substr(0, colon);
  const bool bracketed = host.front() == '[';
  if (bracketed) {
    if (host.size() < 3 || host.back() != ']') return {};
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return {};  // an IPv6 address without brackets does not show where the port begins
  }
  out.host = std::string(host);
  return out;
}

std::string unix_path(std::string_view address) {
  return address.starts_with(kUnix) ? std::string(address.substr(kUnix.size())) : std::string();
}

bool is_local(std::string_view address) {
  if (!unix_path(address).empty()) return true;
  const auto parsed = parse_address(address);
  return parsed && (parsed->host == "localhost" || parsed->host == "::1" || parsed->host.starts_with("127."));
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (family() == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &in.sin_addr, host.data(), host.size());
    return std::string(host.data()) + ":" + std::to_string(ntohs(in.sin_port));
  }
  if (family() == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &in.sin6_addr, host.data(), host.size());
    return "[" + std::string(host.data()) + "]:" + std::to_string(ntohs(in.sin6_port));
  }
  return std::string(kUnix) + reinterpret_cast<const sockaddr_un&>(storage).sun_path;
}

std::vector<SocketAddress> resolve(std::string_view address, Lookup lookup, std::string* why) {
  std::vector<SocketAddress> out;
  if (const auto path = unix_path(address); !path.empty()) {
    auto& one = out.emplace_back();
    auto& un = reinterpret_cast<sockaddr_un&>(one.storage);
    if (path.size() >= sizeof un.sun_path) {
      *why = "the path of the socket is too long";
      return {};
    }
    un.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), un.sun_path);
    one.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
    return out;
  }
  const auto parsed = parse_address(address);
  if (!parsed) {
    *why = "it is not host:port, [IPv6]:port or unix:PATH";
    return {};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (lookup == Lookup::kNumbersOnly ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(), &hints, &found);
      error != 0) {
    *why = parsed->host + ": " + gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    auto& one = out.emplace_back();
    std::copy_n(reinterpret_cast<const char*>(each->ai_addr), each->ai_addrlen, reinterpret_cast<char*>(&one.storage));
    one.size = each->ai_addrlen;
  }
  return out;
}

}  // namespace arlo::transport
