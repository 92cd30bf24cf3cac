// Posts JSON to a collector over HTTP/1.1, in plain text or through TLS. Blocks; not for a lane.
#pragma once

#include <string>
#include <string_view>

#include "base/time.h"
#include "transport/stream.h"

namespace arlo::gateway {

struct HttpTarget {
  std::string host_port;  // empty: none
  std::string path;
  std::string headers;        // further headers, each with its line ending
  transport::TlsContext tls;  // null: plain text
};

// Reads http://host:port or https://, where traces go to /v1/traces, or a URL with a path. Empty: uses OpenTelemetry's
// variables OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT, if set, including their headers and
// certificates (_HEADERS, _CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY). Throws std::invalid_argument.
HttpTarget read_target(std::string_view url);

// Returns the reason of a failure; empty: it was accepted. Takes about `patience` at most.
std::string post(const HttpTarget& target, std::string_view body, TimeNs patience);

}  // namespace arlo::gateway
