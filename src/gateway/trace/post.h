// A POST of JSON over HTTP/1.1, in the clear or through TLS, to a collector. Waits; not for a lane.
#pragma once

#include <string>
#include <string_view>

#include "base/time.h"
#include "transport/tls.h"

namespace arlo::gateway {

struct HttpTarget {
  std::string host_port;  // empty: none
  std::string path;
  std::string headers;        // further ones, each with its end of line
  transport::TlsContext tls;  // null: in the clear
};

// Of http://host:port or https://, where traces go to /v1/traces, or with a path of its own. Empty: that of
// OpenTelemetry's variables, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT, if any. Headers and
// certificates are theirs too (_HEADERS, _CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY). Throws std::invalid_argument.
HttpTarget read_target(std::string_view url);

// Why it was not taken; empty: it was. Within about `patience`.
std::string post(const HttpTarget& target, std::string_view body, TimeNs patience);

}  // namespace arlo::gateway
