// The routes of the HTTP API.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/front/api/task.h"
#include "gateway/front/data_service.h"

namespace arlo::gateway {

// Path prefix: answers use infinity's format, even if the request does not identify it.
inline constexpr std::string_view kInfinity = "/infinity/";

// An answer by the gateway itself.
struct OwnAnswer {
  int status = 200;
  ApiAnswer answer;
};

// A row of routes.toml.
struct Route {
  std::string_view method;  // GET, which includes HEAD, or POST
  std::string_view path;    // '*' matches any one part, "**" a model's name, which may have slashes
  Dialect dialect;
  bool open;                               // needs no token
  std::unique_ptr<ApiTask> (*make)();      // for routes that ask a model; null: say()
  using Parts = std::vector<std::string>;  // matched by '*'
  MaybeFault (*say)(DataService& service, const DataService::Context& context, const Parts& parts, OwnAnswer* reply);
};

struct Found {
  const Route* route = nullptr;
  std::string other;  // no route for this method, but for these
  Route::Parts parts;
  Dialect dialect = Dialect::kOpenAi;  // format of errors, with a route or without
};
// `probes`: for the port that serves only probes.
Found find_route(std::string_view method, std::string_view path, bool probes);

// The dialect of the clients that ask for a path, which need not have a route: the owner of its prefix.
Dialect dialect_of(std::string_view path);

// The decoded value in `a=1&b=2`; empty for none.
std::string query_value(std::string_view query, std::string_view name);

}  // namespace arlo::gateway
