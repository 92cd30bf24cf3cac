// The data port's methods: Triton's GRPCInferenceService for the models that are served, and gRPC's health service.
//
// ModelInfer and ModelStreamInfer take and give raw bytes (see wire.h); the rest are ordinary messages made from the
// deployment. What a gateway in front of several workers cannot honour is UNIMPLEMENTED with the reason.
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

// Thread-safe: one for all lanes.
class DataService {
 public:
  // Bearer tokens, empty: none. Every call must carry `any` or, to be of the class bulk, `bulk`.
  struct Tokens {
    std::string any, bulk;
  };
  DataService(Models& models, const v1::GatewayConfig& config, Tokens tokens, TextHelpers& helpers);

  // Every ModelInfer call and stream says when it has come and when it is over, with all that it holds.
  void call_received() { open_calls_.fetch_add(1, std::memory_order_relaxed); }
  void call_over() { open_calls_.fetch_sub(1, std::memory_order_acq_rel); }
  [[nodiscard]] std::uint64_t open_calls() const { return open_calls_.load(std::memory_order_acquire); }

  [[nodiscard]] PortUsage& usage() { return usage_; }

  using Context = transport::ServerCall;

  // Parses what was received.
  MaybeFault open(std::string body, const Context& context, bool streamed, Call* call) const;
  // Then checks it and makes token ids of text: on another thread where the request is large, and in any case on the
  // lane's thread `then` gets a fault, or the call is ready for submit() of its router. The call has to last until
  // then. UNAVAILABLE, and the call wants a helper's job: to be called again when that is done.
  void bind(bool streamed, Call* call, std::function<void(const MaybeFault&)> then) const;
  // Lets a helper do a job that is wanted, and then runs `then` on the lane; on the lane's thread, where no job is
  // dropped meanwhile.
  void let_help(const std::shared_ptr<text::Job>& job, std::uint64_t client, TimeNs deadline, Lane& lane,
                std::function<void()> then) const;
  // Who asks, for fairness: the authorization that is sent, or else the connection.
  [[nodiscard]] std::uint64_t client_of(const Context& context) const;
  [[nodiscard]] MaybeFault authorize(const Context& context) const;
  // The call is over, with an answer or with this fault: for its trace.
  void trace(const Call& call, const Fault& fault) const;
  // A request refused before it had rows, for the books of its model, if it named one.
  void count_refused(const Call& call, const Fault& fault) const;
  [[nodiscard]] std::uint64_t max_message_bytes() const { return config_.max_message_bytes(); }
  [[nodiscard]] std::size_t max_rows() const { return config_.max_rows(); }

  // The model and its router, or why there is none by this name and version; with a context, if it may know.
  MaybeFault find_model(const Context& context, std::string_view name, std::string_view version, Router** router,
                        std::shared_ptr<const ModelSpec>* model) const {
    if (auto fault = authorize(context)) return fault;
    return find_model(name, version, router, model);
  }
  MaybeFault find_model(std::string_view name, std::string_view version, Router** router,
                        std::shared_ptr<const ModelSpec>* model) const;
  [[nodiscard]] const Models& models() const { return models_; }

  [[nodiscard]] const auto& aliases() const { return config_.aliases(); }

  // Texts that are too long are cut, where the request does not say what becomes of them.
  [[nodiscard]] bool auto_truncate() const { return config_.auto_truncate(); }

  // A method with ordinary messages: takes one as bytes, and leaves another.
  using Method = std::function<MaybeFault(const Context&, const std::string& request, std::string* response)>;
  // By the path of the call; null: there is none.
  [[nodiscard]] const Method* method(const std::string& path) const;

  // The client has gone during bind(): a request that still waits to be read is let go.
  static void leave(Call& call);

 private:
  MaybeFault bind_here(bool streamed, Call* call) const;
  void add_methods();
  // The configuration says bulk: its token does, or its path where the request says no class.
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
