#include "gateway/front/http/api_request.h"

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "gateway/desk/metrics.h"
#include "gateway/front/api/task.h"
#include "gateway/front/http/http_message.h"

namespace arlo::gateway {
namespace {

#include "pages.inc"  // kPage, kOpenApi

template <std::size_t size>
std::string page_of(const unsigned char (&bytes)[size]) {
  return {reinterpret_cast<const char*>(bytes), size};
}

using Context = DataService::Context;
using Parts = Route::Parts;
using nlohmann::json;

MaybeFault say_health(DataService& service, const Context&, const Parts&, HttpAnswer* reply) {
  const bool ready = service.models().ready();
  reply->body = ready ? R"({"status":"ready"})" : R"({"status":"not ready"})";
  if (!ready) reply->status = 503;
  return {};
}

// A health answer in the form that NVIDIA NIM's clients read.
std::string health_of(const char* what, const char* message, bool good) {
  return dumped(json::object({{"object", "health.response"}, {"message", message}, {what, good}}));
}

MaybeFault say_nim_ready(DataService& service, const Context&, const Parts&, HttpAnswer* reply) {
  const bool ready = service.models().ready();
  reply->body = health_of("ready", ready ? "ready" : "not ready", ready);
  if (!ready) reply->status = 503;
  return {};
}

MaybeFault say_nim_live(DataService&, const Context&, const Parts&, HttpAnswer* reply) {
  reply->body = health_of("live", "live", true);
  return {};
}

MaybeFault say_nim_version(DataService&, const Context&, const Parts&, HttpAnswer* reply) {
  reply->body = dumped(json::object({{"release", kServerVersion}, {"api", kServerVersion}}));
  return {};
}

// Renders on the lane's thread, per lane at most once every kFresh: without a token, anyone may ask.
MaybeFault say_metrics(DataService& service, const Context& context, const Parts&, HttpAnswer* reply) {
  constexpr TimeNs kFresh = 100'000'000;
  struct Written {
    const DataService* by = nullptr;
    TimeNs at = 0;
    std::string accept;
    MetricsText text;
  };
  thread_local Written last;
  const TimeNs now = now_ns();
  const std::string_view accept = context.header("accept");
  if (last.by != &service || now - last.at >= kFresh || last.accept != accept) {
    last = {&service, now, std::string(accept), write_metrics(service.models(), service.usage(), accept)};
  }
  *reply = {last.text.body, last.text.type};
  return {};
}

MaybeFault say_page(DataService&, const Context&, const Parts&, HttpAnswer* reply) {
  *reply = {page_of(kPage), "text/html; charset=utf-8",
            "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'\r\n"
            "X-Content-Type-Options: nosniff\r\n"};
  return {};
}

MaybeFault say_openapi(DataService&, const Context&, const Parts&, HttpAnswer* reply) {
  reply->body = page_of(kOpenApi);
  return {};
}

// Triton's clients check the status, KServe's the body.
MaybeFault say_live(DataService&, const Context&, const Parts&, HttpAnswer* reply) {
  reply->body = "{\"live\":true}";
  return {};
}

// Has Triton's status, and the field that KServe's clients check.
HttpAnswer not_ready() { return {.body = R"({"error":"not ready","ready":false})", .status = 400}; }

MaybeFault say_ready(DataService& service, const Context&, const Parts&, HttpAnswer* reply) {
  if (service.models().ready()) {
    reply->body = "{\"ready\":true}";
  } else {
    *reply = not_ready();
  }
  return {};
}

// `root`: the model behind an alias.
json model_of(const std::string& name, const std::string& root) {
  json made = {{"id", name}, {"object", "model"}, {"created", 0}, {"owned_by", "arlo"}};
  if (root != name) made["root"] = root;
  return made;
}

MaybeFault say_models(DataService& service, const Context&, const Parts&, HttpAnswer* reply) {
  auto data = json::array();
  for (const auto& served : service.models().served()) {
    if (!served.stage) data.push_back(model_of(served.name, served.name));
  }
  for (const auto& [alias, name] : service.config().aliases()) {
    Router* router = nullptr;
    std::shared_ptr<const ModelSpec> model;
    if (service.models().find(alias) != nullptr || service.find_model(name, {}, &router, &model)) continue;
    if (model->name == name) data.push_back(model_of(alias, name));
  }
  reply->body = dumped(json::object({{"object", "list"}, {"data", data}}));
  return {};
}

MaybeFault say_model(DataService& service, const Context&, const Parts& parts, HttpAnswer* reply) {
  Router* router = nullptr;
  std::shared_ptr<const ModelSpec> model;
  if (auto fault = service.find_model(parts[0], {}, &router, &model)) return fault;
  reply->body = dumped(model_of(parts[0], model->name));
  return {};
}

// Answers as the data port's method of this name, for the model named by the path.
template <class Request, class Response>
MaybeFault as_method(DataService& service, const Context& context, const Parts& parts, Response* response) {
  Request request;
  if constexpr (requires { request.set_name(""); }) {
    if (!parts.empty()) request.set_name(parts[0]);
    if (parts.size() > 1) request.set_version(parts[1]);
  }
  std::string name(Request::descriptor()->name());
  name.resize(name.size() - std::string_view("Request").size());
  const auto* method = service.method("/inference.GRPCInferenceService/" + name);
  std::string bytes;
  if (auto fault = (*method)(context, request.SerializeAsString(), &bytes)) return fault;
  if (!response->ParseFromString(bytes)) return Fault{Code::kInternal, "the gateway's own answer does not parse"};
  return {};
}

template <class Request, class Response>
MaybeFault say_method(DataService& service, const Context& context, const Parts& parts, HttpAnswer* reply) {
  Response response;
  if (auto fault = as_method<Request>(service, context, parts, &response)) return fault;
  if constexpr (std::is_same_v<Response, inference::ModelConfigResponse>) {
    reply->body = written(response.config());
  } else {
    reply->body = written(response);
  }
  return {};
}

MaybeFault say_model_ready(DataService& service, const Context& context, const Parts& parts, HttpAnswer* reply) {
  inference::ModelReadyResponse response;
  if (auto fault = as_method<inference::ModelReadyRequest>(service, context, parts, &response)) return fault;
  if (response.ready()) {
    reply->body = dumped(json::object({{"name", parts.empty() ? "" : parts[0]}, {"ready", true}}));
  } else {
    *reply = not_ready();
  }
  return {};
}

MaybeFault say_index(DataService& service, const Context& context, const Parts&, HttpAnswer* reply) {
  inference::RepositoryIndexResponse response;
  if (auto fault = as_method<inference::RepositoryIndexRequest>(service, context, {}, &response)) return fault;
  const auto all = json::parse(written(response));
  reply->body = dumped(all.value("models", json::array()));
  return {};
}

MaybeFault probe_live(DataService&, const Context&, const Parts&, HttpAnswer* reply) {
  *reply = {"ok\n", "text/plain"};
  return {};
}

MaybeFault probe_ready(DataService& service, const Context&, const Parts&, HttpAnswer* reply) {
  const bool ready = service.models().ready();
  *reply = {.body = ready ? "ok\n" : "no active instance\n", .type = "text/plain", .status = ready ? 200 : 503};
  return {};
}

MaybeFault probe_metrics(DataService& service, const Context& context, const Parts&, HttpAnswer* reply) {
  auto [body, type] = write_metrics(service.models(), service.usage(), context.header("accept"));
  *reply = {std::move(body), type};
  return {};
}

constexpr auto say_server = say_method<inference::ServerMetadataRequest, inference::ServerMetadataResponse>;
constexpr auto say_metadata = say_method<inference::ModelMetadataRequest, inference::ModelMetadataResponse>;
constexpr auto say_config = say_method<inference::ModelConfigRequest, inference::ModelConfigResponse>;
constexpr auto say_stats = say_method<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>;

const Route kRoutes[] = {
#include "routes.inc"
};

const Route kProbes[] = {{"GET", "/livez", Dialect::kKserve, true, nullptr, probe_live},
                         {"GET", "/readyz", Dialect::kKserve, true, nullptr, probe_ready},
                         {"GET", "/metrics", Dialect::kKserve, true, nullptr, probe_metrics}};

bool matches(std::string_view pattern, std::string_view path, Parts* parts) {
  const auto star = pattern.find('*');
  if (path.substr(0, star) != pattern.substr(0, star)) return false;
  if (star == std::string_view::npos) return true;
  const bool name = pattern.substr(star).starts_with("**");
  pattern.remove_prefix(star + (name ? 2 : 1));
  path.remove_prefix(star);
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = path.find('/', end + 1);
    const auto part = path.substr(0, end);
    if (part.empty() || part.front() == '/' || part.back() == '/') return false;
    if (matches(pattern, path.substr(part.size()), parts)) {
      parts->insert(parts->begin(), percent_decoded(part));
      return true;
    }
    if (!name) return false;
  }
  return false;
}

// The path without a final slash and without the prefixes of several APIs.
std::string_view own_path(std::string_view path) {
  if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (path.starts_with("/openai/v1/")) path.remove_prefix(7);  // KServe's servers serve OpenAI's paths there
  if (path.starts_with(kInfinity)) path.remove_prefix(kInfinity.size() - 1);
  return path;
}

// Unsupported paths, with the API whose clients ask for them.
constexpr std::pair<std::string_view, Dialect> kElsewhere[] = {
    {"/v1/chat", Dialect::kCohere},       {"/v1/chat/completions", Dialect::kOpenAi},
    {"/v1/classify", Dialect::kCohere},   {"/v1/detokenize", Dialect::kCohere},
    {"/v1/embed-jobs", Dialect::kCohere}, {"/v1/tokenize", Dialect::kCohere},
    {"/v2/chat", Dialect::kCohere},
};

}  // namespace

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const auto pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const auto equals = pair.find('=');
    if (equals != std::string_view::npos && pair.substr(0, equals) == name)
      return percent_decoded(pair.substr(equals + 1));
  }
  return {};
}

Dialect dialect_of(std::string_view path) {
  path = own_path(path);
  std::size_t longest = 1;
  Dialect found = Dialect::kOpenAi;
  const auto look = [&](std::string_view known, Dialect dialect) {
    const bool begins = path.starts_with(known) && (path.size() == known.size() || path[known.size()] == '/');
    if (!begins || known.size() <= longest) return;
    longest = known.size();
    found = dialect;
  };
  for (const auto& route : kRoutes) look(route.path, route.dialect);
  for (const auto& [known, dialect] : kElsewhere) look(known, dialect);
  return found;
}

Found find_route(std::string_view method, std::string_view path, bool probes) {
  const auto routes = probes ? std::span<const Route>(kProbes) : std::span<const Route>(kRoutes);
  if (method == "HEAD") method = "GET";
  path = own_path(path);
  for (const auto& route : routes) {
    if (route.path == path && route.method == method) return {&route, {}, {}, route.dialect};
  }
  Found found;
  found.dialect = dialect_of(path);
  std::size_t longest = 0;  // among the patterns: `/v2/models/a/ready` is not the model `a/ready`
  for (const auto& route : routes) {
    Parts parts;
    if (route.path.size() < longest || !matches(route.path, path, &parts)) continue;
    const bool same = route.method == method;
    // With another method, several parts are more likely an unknown path of a model than a model's name.
    if (!same && route.path.ends_with("**") && path.find('/', route.path.size() - 2) != std::string_view::npos)
      continue;
    if (route.path.size() > longest) found.other.clear();
    if (route.path.size() > longest) found.route = nullptr;
    longest = route.path.size();
    if (same) {
      found.route = &route;
      found.parts = std::move(parts);
      found.dialect = route.dialect;
    } else if (found.other.find(route.method) == std::string::npos) {
      found.other.append(found.other.empty() ? "" : ", ").append(route.method);
    }
  }
  return found;
}

}  // namespace arlo::gateway
