// The models that the gateway serves. Those of one deployment share their instances, and so a router; those of others
// have routers of their own, and touch each other nowhere.
//
// There is always one router, nameless until the first deployment comes; what is asked for before it, or by a name that
// no model has, is counted there. Routers stay until the gateway ends. Every method may be called from any thread.
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

  // As of Router, for all of them and those that come later.
  void start(Lane& lane);
  void close();
  void stop();

  struct Served {
    std::string name;
    Router* router;
    bool stage = false;  // clients do not see it: it answers for a cascade
  };
  // By the model's name; nullptr: none has it.
  [[nodiscard]] Router* find(std::string_view name) const;
  [[nodiscard]] Router& first() const;
  // Those that are deployed, by name.
  [[nodiscard]] std::vector<Served> served() const;
  // Of one model, or without a name of the only deployment. NOT_FOUND, INVALID_ARGUMENT.
  MaybeFault pick(const std::string& name, Router** router) const;
  // 'a', 'b': for people.
  [[nodiscard]] std::string names() const;
  // Some model is served, and each is ready.
  [[nodiscard]] bool ready() const;

  // Makes the models of a deployment be served so: in place of the only one, whatever its models were, or beside
  // others. Faults as of Router::apply.
  MaybeFault apply(const v1::ApplyRequest& request, v1::ApplyReply* reply);

 private:
  const v1::GatewayConfig& config_;
  std::mutex applying_;   // one deployment at a time
  bool stopped_ = false;  // under it: a router that came now would have no lane
  mutable std::shared_mutex mutex_;
  Lane* lane_ = nullptr;
  bool closed_ = false;
  std::vector<std::unique_ptr<Router>> routers_;  // in the order in which they came
  [[nodiscard]] std::size_t deployments() const;

  struct Entry {
    Router* router;
    bool stage;
  };
  std::map<std::string, Entry, std::less<>> by_name_;
};

}  // namespace arlo::gateway
