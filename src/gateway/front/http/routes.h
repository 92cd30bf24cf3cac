// What there is under which path of the HTTP API.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/front/api/task.h"
#include "gateway/front/data_service.h"

namespace arlo::gateway {

// Before any path: the answer is in infinity's form, where the request does not tell it from others.
inline constexpr std::string_view kInfinity = "/infinity/";

// An answer of the gateway itself.
struct OwnAnswer {
  int status = 200;
  ApiAnswer answer;
};

// A row of routes.toml.
struct Route {
  std::string_view method;  // GET, which HEAD asks for too, or POST
  std::string_view path;    // '*' stands for any one part, "**" for a model's name, which may have slashes
  Dialect dialect;
  bool open;                               // needs no token
  std::unique_ptr<ApiTask> (*make)();      // of what asks a model; null: say()
  using Parts = std::vector<std::string>;  // that stand for '*'
  MaybeFault (*say)(DataService& service, const DataService::Context& context, const Parts& parts, OwnAnswer* reply);
};

struct Found {
  const Route* route = nullptr;
  std::string other;  // no route, but some for these methods
  Route::Parts parts;
  Dialect dialect = Dialect::kOpenAi;  // in which errors are said, with a route or without
};
// `probes`: of the port that has nothing else.
Found find_route(std::string_view method, std::string_view path, bool probes);

// Whose clients ask for a path, which need not have a route: whoever has those that it begins with.
Dialect dialect_of(std::string_view path);

// Of `a=1&b=2`, opened; empty for none.
std::string query_value(std::string_view query, std::string_view name);

}  // namespace arlo::gateway
