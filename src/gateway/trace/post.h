// A POST of JSON over HTTP/1.1 in the clear, to a collector on this machine or beside it. Waits; not for a lane.
#pragma once

#include <string>
#include <string_view>

#include "base/time.h"

namespace arlo::gateway {

struct HttpTarget {
  std::string host_port;  // empty: none
  std::string path;
};

// Of http://host:port, where traces go to /v1/traces, or with a path of its own. Empty for empty. Throws
// std::invalid_argument.
HttpTarget read_target(std::string_view url);

// Why it was not taken; empty: it was. Within about `patience`.
std::string post(const HttpTarget& target, std::string_view body, TimeNs patience);

}  // namespace arlo::gateway
