#include "gateway/front/data_service.h"

#include <algorithm>
#include <utility>

#include "base/ascii.h"
#include "base/utf8.h"
#include "gateway/fleet/cascade.h"
#include "gateway/fleet/lane.h"
#include "gateway/front/encode.h"

namespace arlo::gateway {
namespace {

// Requests with more bytes than this are handled on another thread: text is tokenised, tensors are only scanned.
constexpr std::size_t kLongText = 64 << 10;
constexpr std::size_t kLongTensors = 1 << 20;

// Compares in time that does not reveal how much of the token was right.
bool same_secret(std::string_view given, std::string_view wanted) {
  unsigned char difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return difference == 0;
}

// Whether the call carries this bearer token.
bool sends(const transport::ServerCall& call, std::string_view token) {
  if (token.empty()) return false;
  constexpr std::string_view kScheme = "bearer ";  // case-insensitive (RFC 9110, 11.1)
  const auto value = call.header("authorization");
  return equal_ignoring_case(value.substr(0, kScheme.size()), kScheme) &&
         same_secret(value.substr(std::min(kScheme.size(), value.size())), token);
}

}  // namespace

DataService::DataService(Models& models, const v1::GatewayConfig& config, Tokens tokens, TextHelpers& helpers)
    : models_(models),
      config_(config),
      tokens_(std::move(tokens)),
      helpers_(helpers),
      tracer_(config.tracing(), usage_) {
  limits_.max_rows = config.max_rows();
  add_methods();
}

const DataService::Method* DataService::method(const std::string& path) const {
  const auto found = methods_.find(path);
  return found == methods_.end() ? nullptr : &found->second;
}

MaybeFault DataService::authorize(const Context& context) const {
  if (tokens_.any.empty() || sends(context, tokens_.any) || sends(context, tokens_.bulk)) return {};
  return Fault{Code::kUnauthenticated, "a bearer token is needed: send the metadata 'authorization: Bearer TOKEN'"};
}

// A token shared by many clients does not identify one of them.
std::uint64_t DataService::client_of(const Context& context) const {
  const auto authorization = context.header("authorization");
  const bool named = tokens_.any.empty() && !authorization.empty();
  return std::hash<std::string_view>{}(named ? authorization : context.peer()) | 1;  // 0 is no client
}

bool DataService::bulk_by_rule(const Context& context, const InferRequest& request) const {
  if (sends(context, tokens_.bulk)) return true;
  if (request.says_class() || config_.bulk_paths().empty()) return false;
  const std::string_view path = context.path();
  return std::ranges::any_of(config_.bulk_paths(), [path](const std::string& each) {
    return path == each || (each.ends_with('/') && path.starts_with(each));
  });
}

MaybeFault DataService::find_model(std::string_view name, std::string_view version, Router** router,
                                   std::shared_ptr<const ModelSpec>* model) const {
  *router = models_.find(name);
  if (*router == nullptr) {
    if (const auto alias = config_.aliases().find(std::string(name)); alias != config_.aliases().end()) {
      name = alias->second;
      *router = models_.find(name);
    }
  }
  if (*router == nullptr) {
    if (models_.served().empty()) return Fault{Code::kUnavailable, "the gateway has no deployment yet"};
    return Fault{Code::kNotFound, "unknown model " + quoted(name) + "; this gateway serves " + models_.names()};
  }
  *model = (*router)->model(name);
  if (*model == nullptr || (*model)->stage) {  // null: a deployment without it came in the meantime
    return Fault{Code::kNotFound, "unknown model " + quoted(name) + "; this gateway serves " + models_.names()};
  }
  if (!version.empty() && version != "1") {
    return Fault{Code::kNotFound,
                 "model '" + (*model)->name + "' has no version " + quoted(version) + "; it has version '1'"};
  }
  return {};
}

MaybeFault DataService::open(std::string body, const Context& context, bool streamed, Call* call) const {
  call->received_ns = now_ns();
  call->trace = tracer_.begin(context.header("traceparent"), call->received_ns);
  if (call->trace != nullptr && call->trace->own != 0) call->trace->request_id = context.header("x-request-id");
  if (auto fault = authorize(context)) return fault;
  call->body = std::move(body);
  if (auto fault = call->request.parse(call->body)) return fault;
  auto& model = call->model;
  if (auto fault = find_model(call->request.model_name(), call->request.model_version(), &call->router, &model)) {
    return fault;
  }
  // The products of its rows in a pipeline may outlive the call.
  if (model->of_tensors() && model->flow != nullptr) {
    call->shared = std::make_shared<const std::string>(std::move(call->body));
    call->request = {};
    if (auto fault = call->request.parse(*call->shared)) return fault;
  }
  call->client = client_of(context);
  call->as_bulk = bulk_by_rule(context, call->request);
  // A stream's deadline covers the whole stream: one request on it still gets at most the default.
  call->by_default = streamed || context.deadline() == kNever;
  call->latest_ns = std::min(context.deadline(), call->received_ns + Call::kLongestTimeout);
  const TimeNs timeout_us = call->request.timeout_us();
  if (timeout_us != 0 && timeout_us < Call::kLongestTimeout / 1000) {
    call->latest_ns = std::min(call->latest_ns, call->received_ns + timeout_us * 1000);
  }
  call->deadline_ns = call->latest_ns;
  if (call->by_default) call->set_default_deadline(0);
  if (model->text_elsewhere()) call->text_job = std::make_shared<text::Job>();
  return {};
}

void DataService::bind(bool streamed, Call* call, std::function<void(const MaybeFault&)> then) const {
  const std::size_t bytes = call->shared == nullptr ? call->body.size() : call->shared->size();
  const bool text = call->request.has_text();
  if (bytes <= (text ? kLongText : kLongTensors)) return then(bind_here(streamed, call));
  call->reader = Call::Reader::kAwaited;
  auto fault = std::make_shared<MaybeFault>(Fault{Code::kCancelled, "cancelled by the client"});
  call->lane->aside(text ? bytes : 0)
      .run(
          reinterpret_cast<const void*>(call->client),
          [this, streamed, call, fault] {
            auto awaited = Call::Reader::kAwaited;
            if (call->reader.compare_exchange_strong(awaited, Call::Reader::kBusy)) *fault = bind_here(streamed, call);
          },
          [then = std::move(then), fault] { then(*fault); });
}

void DataService::leave(Call& call) {
  auto awaited = Call::Reader::kAwaited;
  if (!call.reader.compare_exchange_strong(awaited, Call::Reader::kNone)) return;
  call.request = {};
  std::string().swap(call.body);
  call.shared.reset();
}

MaybeFault DataService::bind_here(bool streamed, Call* call) const {
  const ModelSpec& model = *call->model;
  const TimeNs began = call->request.has_text() ? now_ns() : 0;
  if (auto fault = call->request.bind(model, limits_, call->text_job.get())) return fault;
  // Includes the wait for a helper.
  if (began != 0) call->tokenized_ns = now_ns() - (call->text_job == nullptr ? began : call->received_ns);
  if (model.cascade != nullptr) {
    if (auto fault = model.cascade->check(call->request.wishes())) return fault;
  }
  if (call->request.wishes().partial && !streamed) {
    return Fault{Code::kInvalidArgument, "parameter cascade_partial: partial answers are sent on streams only"};
  }
  if (const auto known = known_answer_bytes(model, call->request); known > config_.max_message_bytes()) {
    return answer_too_large(known, config_.max_message_bytes());
  }
  return {};
}

void DataService::trace(const Call& call, const Fault& fault) const {
  if (call.trace != nullptr) tracer_.ended(call, fault, now_ns());
}

void DataService::count_refused(const Call& call, const Fault& fault) const {
  (call.router != nullptr ? *call.router : models_.first()).count_refused(call.model.get(), fault);
}

}  // namespace arlo::gateway
