#include "gateway/front/address.h"

#include <charconv>

namespace arlo::gateway {
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
    return {};  // of an IPv6 address without brackets it is open where the port begins
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

}  // namespace arlo::gateway
