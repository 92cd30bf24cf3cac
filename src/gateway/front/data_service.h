// The data port's methods: Triton's GRPCInferenceService for the served models, and gRPC's health service.
//
// ModelInfer and ModelStreamInfer take and give raw bytes (see wire.h); the others use ordinary messages, built from
// the deployment. Features that a gateway in front of several workers lacks return UNIMPLEMENTED with the reason.
#pragma once

#include <arlo/v1/config.pb.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "gateway/desk/call.h"
#include "gateway/desk/models.h"
#include "gateway/front/usage.h"
#include "gateway/text/helpers.h"
#include "gateway/trace/tracer.h"
#include "transport/server_session.h"

namespace arlo::gateway {

// Thread-safe: one instance serves all lanes.
class DataService {
 public:
  // Bearer tokens; empty: none. Every call must carry `any`, or `bulk`, which makes it bulk.
  struct Tokens {
    std::string any, bulk;
  };
  DataService(Models& models, const v1::GatewayConfig& config, Tokens tokens, TextHelpers& helpers);

  // Each ModelInfer call and stream reports its arrival, and its end with all its objects.
  void call_received() { open_calls_.fetch_add(1, std::memory_order_relaxed); }
  void call_over() { open_calls_.fetch_sub(1, std::memory_order_acq_rel); }
  [[nodiscard]] std::uint64_t open_calls() const { return open_calls_.load(std::memory_order_acquire); }

  [[nodiscard]] PortUsage& usage() { return usage_; }

  using Context = transport::ServerCall;

  // Parses the received request.
  MaybeFault open(std::string body, const Context& context, bool streamed, Call* call) const;
  // Checks the call and tokenises text: on another thread if the request is large. On the lane's thread, `then` gets a
  // fault, or the call is ready for submit() of its router. The call must live until then. UNAVAILABLE if the call
  // needs a helper's job: call again when the job is done.
  void bind(bool streamed, Call* call, std::function<void(const MaybeFault&)> then) const;
  // For a wanted job; called on the lane's thread, where no job is dropped meanwhile.
  [[nodiscard]] TextHelpers& helpers() const { return helpers_; }
  // The client's identity for fairness: its authorization header, or else the connection.
  [[nodiscard]] std::uint64_t client_of(const Context& context) const;
  [[nodiscard]] MaybeFault authorize(const Context& context) const;
  // Traces a call that is over, with an answer or with this fault.
  void trace(const Call& call, const Fault& fault) const;
  // Books a request refused before it had rows, for its model, if it named one.
  void count_refused(const Call& call, const Fault& fault) const;
  [[nodiscard]] const v1::GatewayConfig& config() const { return config_; }

  // Finds the model and its router by name and version, or returns the fault.
  MaybeFault find_model(std::string_view name, std::string_view version, Router** router,
                        std::shared_ptr<const ModelSpec>* model) const;
  [[nodiscard]] const Models& models() const { return models_; }

  // A method with ordinary messages: takes a request as bytes, and writes the response.
  using Method = std::function<MaybeFault(const Context&, const std::string& request, std::string* response)>;
  // Finds a method by the path of the call; null: none.
  [[nodiscard]] const Method* method(const std::string& path) const;

  // The client has gone during bind(): releases a request that still waits to be read.
  static void leave(Call& call);

 private:
  MaybeFault bind_here(bool streamed, Call* call) const;
  struct Asked {
    Router* router = nullptr;
    std::shared_ptr<const ModelSpec> model;
  };
  // Finds the model of a request with a name and a version, if the context has the permission.
  template <class Request>
  MaybeFault find_model(const Context& context, const Request& request, Asked* out) const {
    if (auto fault = authorize(context)) return fault;
    return find_model(request.name(), request.version(), &out->router, &out->model);
  }
  void add_methods();
  template <class Request, class Response, class Handle>
  void add(Handle handle);
  // Whether the configuration makes it bulk: by its token, or by its path if the request names no class.
  [[nodiscard]] bool bulk_by_rule(const Context& context, const InferRequest& request) const;
  Models& models_;
  const v1::GatewayConfig& config_;
  const Tokens tokens_;
  TextHelpers& helpers_;
  RequestLimits limits_;
  std::unordered_map<std::string, Method> methods_;
  std::atomic<std::uint64_t> open_calls_{0};
  PortUsage usage_;
  mutable Tracer tracer_;
};

}  // namespace arlo::gateway
