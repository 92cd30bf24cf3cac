#include "gateway/desk/models.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/utf8.h"
#include "gateway/fleet/cascade.h"
#include "gateway/fleet/pipeline.h"
#include "rewrite/model.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kMostModels = 64;
constexpr std::uint64_t kFarAhead = 1'000'000'000;

// Versions only grow, so a version near the maximum would lock out every later deployment.
MaybeFault check_version(std::uint64_t wanted, std::uint64_t in_force) {
  if (wanted <= in_force || wanted - in_force <= kFarAhead) return {};
  return Fault{Code::kFailedPrecondition, "deployment version " + std::to_string(wanted) + " is far ahead of version " +
                                              std::to_string(in_force) + ", which is in force: at most " +
                                              std::to_string(kFarAhead) + " above it"};
}

}  // namespace

Models::Models(const v1::GatewayConfig& config) : config_(config) {
  routers_.push_back(std::make_unique<Router>(config));
}

void Models::start(Lane& lane) {
  const std::unique_lock lock(mutex_);
  lane_ = &lane;
  for (const auto& router : routers_) router->start(lane);
}

void Models::close() {
  const std::unique_lock lock(mutex_);
  closed_ = true;
  for (const auto& router : routers_) router->close();
}

void Models::stop() {
  const std::lock_guard applying(applying_);
  stopped_ = true;
  const std::shared_lock lock(mutex_);
  std::vector<std::thread> threads;  // each may wait a moment for its workers
  threads.reserve(routers_.size());
  for (const auto& router : routers_) threads.emplace_back([&router] { router->stop(); });
  for (auto& thread : threads) thread.join();
}

Router* Models::find(std::string_view name) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.router;
}

Router& Models::first() const {
  const std::shared_lock lock(mutex_);
  return *routers_.front();
}

std::vector<Models::Served> Models::served() const {
  const std::shared_lock lock(mutex_);
  std::vector<Served> all;
  all.reserve(by_name_.size());
  for (const auto& [name, entry] : by_name_) all.push_back({name, entry.router, entry.stage});
  return all;
}

std::size_t Models::deployments() const {
  const std::shared_lock lock(mutex_);
  std::set<const Router*> routers;
  for (const auto& [name, entry] : by_name_) routers.insert(entry.router);
  return routers.size();
}

MaybeFault Models::pick(const std::string& name, Router** router) const {
  *router = name.empty() ? &first() : find(name);
  if (*router == nullptr) return Fault{Code::kNotFound, "unknown model " + quoted(name) + "; there is " + names()};
  if (name.empty() && deployments() > 1) {
    return Fault{Code::kInvalidArgument, "name a model: this gateway serves " + names()};
  }
  return {};
}

std::string Models::names() const {
  const std::shared_lock lock(mutex_);
  std::string text;
  for (const auto& [name, entry] : by_name_) {
    if (!entry.stage) text += (text.empty() ? "'" : ", '") + name + "'";
  }
  return text.empty() ? "no deployment yet" : text;
}

bool Models::ready() const {
  const auto all = served();
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const Served& served) {
    return served.stage || served.router->ready(served.name);
  });
}

MaybeFault Models::apply(const v1::ApplyRequest& request, v1::ApplyReply* reply) {
  const auto& deployment = request.deployment();
  if (auto fault = check_deployment(deployment)) return fault;
  if (auto fault = check_flows(deployment)) return fault;
  const std::lock_guard applying(applying_);
  if (stopped_) return Fault{Code::kUnavailable, "the gateway is stopping"};
  const std::size_t others = deployments();
  if (!request.beside() && others > 1) {
    return Fault{Code::kFailedPrecondition,
                 "this gateway serves " + names() + ": a deployment has to be applied beside those of the others"};
  }
  Router* router = nullptr;
  const auto all = names_of(deployment);
  for (const auto& name : all) {
    Router* const known = find(name);
    if (known == nullptr) continue;
    if (router != nullptr && known != router) {
      return Fault{Code::kFailedPrecondition, "model '" + name + "' is served by another deployment"};
    }
    router = known;
  }
  std::unique_ptr<Router> made;
  if (router == nullptr && request.beside() && others > 0) {
    if (served().size() >= kMostModels) {
      return Fault{Code::kResourceExhausted, "a gateway serves at most " + std::to_string(kMostModels) + " models"};
    }
    made = std::make_unique<Router>(config_);
    made->start(*lane_);
    router = made.get();
  }
  if (router == nullptr) router = &first();
  if (auto fault = check_version(deployment.version(), router->deployment().version())) return fault;
  std::vector<std::shared_ptr<const TextSpec>> ready;  // compiled outside the router's lock, as it takes a while
  for (const v1::Model* model : models_of(deployment)) ready.push_back(make_text(model->tokenizer()));
  if (auto fault = router->apply(deployment, reply)) return fault;

  const std::unique_lock lock(mutex_);
  if (made != nullptr) {
    if (closed_) made->close();
    routers_.push_back(std::move(made));
  }
  std::erase_if(by_name_, [router](const auto& entry) { return entry.second.router == router; });
  for (const auto& name : all) by_name_.emplace(name, Entry{router, inner(deployment, name)});
  return {};
}

}  // namespace arlo::gateway
