#include "gateway/trace/post.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#include "base/ascii.h"
#include "base/clock.h"
#include "gateway/front/http/http_message.h"
#include "transport/listener.h"
#include "transport/stream.h"

namespace arlo::gateway {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

// Returns false on timeout.
bool await(int fd, short events, TimeNs until) {
  const auto left = static_cast<int>(std::max<TimeNs>(0, until - now_ns()) / 1'000'000);
  pollfd polled{fd, events, 0};
  return left > 0 && poll(&polled, 1, left) > 0;
}

std::string broken(const transport::ByteStream& stream, long count, const char* ended) {
  if (!stream.fault().empty()) return "TLS: " + stream.fault();
  return count == 0 || errno == 0 ? ended : error_text(errno);
}

// The answer's status line; empty, or `why` without an answer.
std::string exchange(transport::ByteStream& stream, bool tls, std::string_view request, std::string* line,
                     TimeNs until) {
  using transport::ByteStream;
  constexpr const char* kEnded = "it closed the connection without an answer";
  const auto wait = [&](short events) {
    return await(stream.fd(), stream.wants_write() ? POLLOUT : tls ? POLLIN : events, until);
  };
  while (!request.empty()) {
    const long count = stream.write(request.data(), request.size());
    if (count == ByteStream::kBlocked && !wait(POLLOUT)) return "it takes too long to take a request";
    if (count == 0 || count == ByteStream::kBroken) return broken(stream, count, kEnded);
    if (count > 0) request.remove_prefix(static_cast<std::size_t>(count));
  }
  constexpr std::size_t kMost = 1024;  // of an answer, of which only the first line counts
  while (line->find("\r\n") == std::string::npos && line->size() < kMost) {
    char bytes[kMost];
    const long count = stream.read(bytes, sizeof bytes);
    if (count == ByteStream::kBlocked && !wait(POLLIN)) return "it takes too long to answer";
    if (count == 0 || count == ByteStream::kBroken) return broken(stream, count, kEnded);
    if (count > 0) line->append(bytes, static_cast<std::size_t>(count));
  }
  return {};
}

// OpenTelemetry's variable for traces, or else the general one; `name`: set to the variable used.
std::string of_environment(const std::string& what, std::string* name = nullptr) {
  for (const std::string& full : {"OTEL_EXPORTER_OTLP_TRACES_" + what, "OTEL_EXPORTER_OTLP_" + what}) {
    const char* const value = std::getenv(full.c_str());
    if (value == nullptr || *value == '\0') continue;
    if (name != nullptr) *name = full;
    return value;
  }
  return {};
}

// Reads `key=value,key=value`, with values percent-encoded.
std::string read_headers() {
  std::string name;
  const std::string value = of_environment("HEADERS", &name);
  std::string out;
  for (std::string_view left = value; !left.empty();) {
    const auto pair = trimmed(left.substr(0, left.find(',')));
    left.remove_prefix(std::min(left.size(), left.find(',')) + (left.find(',') < left.size() ? 1 : 0));
    if (pair.empty()) continue;
    const auto equals = std::min(pair.find('='), pair.size());
    const auto key = trimmed(pair.substr(0, equals));
    const auto text = percent_decoded(trimmed(pair.substr(std::min(pair.size(), equals + 1))));
    if (equals == pair.size() || !is_token(key) || !is_plain(text)) {
      throw std::invalid_argument(name + " is not key=value,key=value");
    }
    out.append(key).append(": ").append(text).append("\r\n");
  }
  return out;
}

}  // namespace

HttpTarget read_target(std::string_view url) {
  std::string name = "tracing.otlp_endpoint";
  const std::string given = url.empty() ? of_environment("ENDPOINT", &name) : std::string(url);
  if (given.empty()) return {};
  const bool tls = given.starts_with("https://");
  if (!tls && !given.starts_with("http://")) {
    throw std::invalid_argument(name + " '" + given + "' is not http://host:port or https://host:port");
  }
  const auto begin = given.find("//") + 2;
  const auto slash = std::min(given.find('/', begin), given.size());
  HttpTarget target;
  target.host_port = given.substr(begin, slash - begin);
  target.path = given.substr(slash);
  if (!transport::parse_address(target.host_port)) target.host_port += tls ? ":443" : ":80";
  if (!transport::parse_address(target.host_port)) {
    throw std::invalid_argument(name + ": '" + given.substr(begin, slash - begin) + "' is not host:port");
  }
  constexpr std::string_view kPath = "/v1/traces";
  if (name == "OTEL_EXPORTER_OTLP_ENDPOINT") {  // the general endpoint: traces go to a path below it
    if (target.path.ends_with('/')) target.path.pop_back();
    target.path += kPath;
  } else if (target.path.empty() || target.path == "/") {
    target.path = kPath;
  }
  target.headers = read_headers();
  if (tls) {
    target.tls = transport::make_client_tls(of_environment("CERTIFICATE"), of_environment("CLIENT_CERTIFICATE"),
                                            of_environment("CLIENT_KEY"));
  }
  return target;
}

std::string post(const HttpTarget& target, std::string_view body, TimeNs patience) {
  std::string why;
  const TimeNs until = now_ns() + patience;
  for (const auto& address : transport::resolve(target.host_port, transport::Lookup::kNames, &why)) {
    const int fd = socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return error_text(errno);
    transport::ByteStream stream(fd, target.tls, transport::parse_address(target.host_port)->host);
    int error = connect(fd, address.get(), address.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      if (!await(fd, POLLOUT, until)) {
        error = ETIMEDOUT;
      } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
      }
    }
    if (error != 0) {
      why = error_text(error);
      continue;
    }
    std::string request = "POST " + target.path + " HTTP/1.1\r\nHost: " + target.host_port +
                          "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                          "\r\nConnection: close\r\n" + target.headers + "\r\n";
    request += body;
    std::string line;
    if (auto broke = exchange(stream, target.tls != nullptr, request, &line, until); !broke.empty()) return broke;
    const bool taken = line.starts_with("HTTP/1.") && line.size() > 9 && line[9] == '2';
    return taken ? std::string() : "it answers " + line.substr(0, line.find("\r\n"));
  }
  return why.empty() ? "its address has no meaning" : why;
}

}  // namespace arlo::gateway
