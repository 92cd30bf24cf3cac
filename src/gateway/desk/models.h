// The models that the gateway serves. Models of one deployment share instances, and so a router; other deployments have
// separate routers, which never interact.
//
// There is always one router, nameless until the first deployment comes; it counts requests before that, and requests
// for unknown models. Routers stay until the gateway ends. Every method may be called from any thread.
#pragma once

#include <arlo/v1/admin.pb.h>
#include <arlo/v1/config.pb.h>

#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/desk/router.h"

namespace arlo::gateway {

class Models {
 public:
  explicit Models(const v1::GatewayConfig& config);
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;

  // Calls Router::start for all present and future routers.
  void start(Lane& lane);
  void close();
  void stop();

  struct Served {
    std::string name;
    Router* router;
    bool stage = false;  // hidden from clients: it answers for a cascade
  };
  // Finds a router by the model's name; nullptr: none.
  [[nodiscard]] Router* find(std::string_view name) const;
  [[nodiscard]] Router& first() const;
  // Returns the deployed models, by name.
  [[nodiscard]] std::vector<Served> served() const;
  // Picks the router of a model, or without a name, of the only deployment. NOT_FOUND, INVALID_ARGUMENT.
  MaybeFault pick(const std::string& name, Router** router) const;
  // Returns the names as 'a', 'b', for messages.
  [[nodiscard]] std::string names() const;
  // Returns whether some model is served, and each is ready.
  [[nodiscard]] bool ready() const;

  // Serves the models of a deployment: in place of the only deployment, whichever models it had, or in addition to
  // others. Faults as in Router::apply.
  MaybeFault apply(const v1::ApplyRequest& request, v1::ApplyReply* reply);

 private:
  const v1::GatewayConfig& config_;
  std::mutex applying_;   // one deployment at a time
  bool stopped_ = false;  // under applying_: a new router would have no lane
  mutable std::shared_mutex mutex_;
  Lane* lane_ = nullptr;
  bool closed_ = false;
  std::vector<std::unique_ptr<Router>> routers_;  // in order of creation
  [[nodiscard]] std::size_t deployments() const;

  struct Entry {
    Router* router;
    bool stage;
  };
  std::map<std::string, Entry, std::less<>> by_name_;
};

}  // namespace arlo::gateway
