#include "gateway/front/data_service.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <functional>

#include "base/ascii.h"
#include "base/utf8.h"
#include "gateway/fleet/upstream.h"
#include "gateway/front/encode.h"
#include "gateway/front/infer_call.h"
#include "gateway/front/stream.h"

namespace arlo::gateway {
namespace {

constexpr int kWaitingCalls = 128;  // each accepted call makes the next; so many may come in one burst unpolled
// Of answers that clients have not taken; some of the largest fit in any case.
constexpr std::size_t kUnsentBytes = 256 << 20;
constexpr std::size_t kUnsentLargest = 4;
constexpr TimeNs kBulkPatience = 60;  // times the default time-out
constexpr TimeNs kLongestTimeout = TimeNs{24} * 3600 * 1'000'000'000;

// Comparison in time that does not tell how much of the token was right.
bool same_secret(std::string_view given, std::string_view wanted) {
  unsigned char difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return difference == 0;
}

TimeNs deadline_of(const grpc::ServerContext& context, TimeNs received, TimeNs fallback) {
  const gpr_timespec raw = context.raw_deadline();
  if (gpr_time_cmp(raw, gpr_inf_future(raw.clock_type)) == 0) return received + fallback;
  const gpr_timespec when = gpr_convert_clock_type(raw, GPR_CLOCK_MONOTONIC);
  if (when.tv_sec > received / 1'000'000'000 + kLongestTimeout / 1'000'000'000) return received + kLongestTimeout;
  return TimeNs{when.tv_sec} * 1'000'000'000 + when.tv_nsec;
}

}  // namespace

DataService::DataService(Models& models, const v1::GatewayConfig& config, std::string token)
    : models_(models),
      config_(config),
      token_(std::move(token)),
      unsent_(std::max<std::size_t>(kUnsentBytes, kUnsentLargest * config.max_message_bytes())) {
  limits_.max_rows = config.max_rows();
}

MaybeFault DataService::authorize(const Context& context) const {
  if (token_.empty()) return {};
  constexpr std::string_view kScheme = "bearer ";  // its case does not matter (RFC 9110, 11.1)
  const auto found = context.client_metadata().find("authorization");
  if (found != context.client_metadata().end()) {
    const std::string_view value(found->second.data(), found->second.size());
    if (equal_ignoring_case(value.substr(0, kScheme.size()), kScheme) &&
        same_secret(value.substr(kScheme.size()), token_))
      return {};
  }
  return Fault{Code::kUnauthenticated, "a bearer token is needed: send the metadata 'authorization: Bearer TOKEN'"};
}

// The one token that every client has tells none of them from the others.
std::uint64_t DataService::client_of(const Context& context) const {
  const auto found = context.client_metadata().find("authorization");
  const bool named = token_.empty() && found != context.client_metadata().end();
  const auto hash = named ? std::hash<std::string_view>{}({found->second.data(), found->second.size()})
                          : std::hash<std::string>{}(context.peer());
  return hash | 1;  // 0 is no client
}

MaybeFault DataService::find_model(const Context& context, std::string_view name, std::string_view version,
                                   Router** router, std::shared_ptr<const ModelSpec>* model) const {
  if (auto fault = authorize(context)) return fault;
  *router = models_.find(name);
  if (*router == nullptr) {
    if (models_.served().empty()) return Fault{Code::kUnavailable, "the gateway has no deployment yet"};
    return Fault{Code::kNotFound, "unknown model " + quoted(name) + "; this gateway serves " + models_.names()};
  }
  *model = (*router)->model(name);
  if (*model == nullptr) {  // a deployment without it came in between
    return Fault{Code::kNotFound, "unknown model " + quoted(name) + "; this gateway serves " + models_.names()};
  }
  if (!version.empty() && version != "1") {
    return Fault{Code::kNotFound,
                 "model '" + (*model)->name + "' has no version " + quoted(version) + "; it has version '1'"};
  }
  return {};
}

MaybeFault DataService::receive(const grpc::ByteBuffer& body, const Context& context, bool streamed, Call* call) const {
  call->received_ns = now_ns();
  if (auto fault = authorize(context)) return fault;
  call->body = single_slice(body);
  const std::string_view bytes(reinterpret_cast<const char*>(call->body.begin()), call->body.size());
  if (auto fault = call->request.parse(bytes)) return fault;
  auto& model = call->model;
  if (auto fault =
          find_model(context, call->request.model_name(), call->request.model_version(), &call->router, &model)) {
    return fault;
  }
  if (auto fault = call->request.bind(*model, limits_)) return fault;
  if (const auto known = known_answer_bytes(*model, call->request); known > config_.max_message_bytes()) {
    return answer_too_large(known, config_.max_message_bytes());
  }
  call->client = client_of(context);
  const TimeNs patience = call->request.bulk() ? kBulkPatience : 1;
  const TimeNs timeout = std::min(patience * model->default_timeout_ns, kLongestTimeout);
  call->deadline_ns = deadline_of(context, call->received_ns, timeout);
  // A stream's deadline is that of the stream: one request on it still gets no more than the default.
  if (streamed) call->deadline_ns = std::min(call->deadline_ns, call->received_ns + timeout);
  const TimeNs timeout_us = call->request.timeout_us();
  if (timeout_us != 0 && timeout_us < kLongestTimeout / 1000) {
    call->deadline_ns = std::min(call->deadline_ns, call->received_ns + timeout_us * 1000);
  }
  return {};
}

void DataService::count_refused(const Call& call, const Fault& fault) const {
  (call.router != nullptr ? *call.router : models_.first()).count_refused(call.model.get(), fault);
}

void DataService::serve(grpc::ServerCompletionQueue& queue) {
  for (int i = 0; i < kWaitingCalls; ++i) new InferCall(*this, queue);
  new StreamCall(*this, queue);
  serve_info(queue);
}

void DataService::wait_until_over() const {
  for (auto open = open_calls_.load(); open != 0; open = open_calls_.load()) open_calls_.wait(open);
}

void DataService::shut_down_streams() {
  const std::lock_guard lock(streams_mutex_);
  closing_ = true;
  for (auto* stream : streams_) stream->close();
}

}  // namespace arlo::gateway
