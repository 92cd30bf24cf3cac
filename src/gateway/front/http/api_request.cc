#include "gateway/front/http/api_request.h"

#include <google/protobuf/arena.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "transport/grpc_message.h"

namespace arlo::gateway {

void ApiRequest::read(const DataService& service, std::size_t most) {
  if (!encoding.empty() && !equal_ignoring_case(encoding, "identity")) {
    std::string opened;
    const auto state = transport::open(encoding, body, most, &opened);
    if (state == transport::Opened::kUnknownEncoding) {
      status_ = 415;
      fault_ = invalid("Content-Encoding: gzip and deflate are taken, and no other");
    } else if (state == transport::Opened::kTooLarge) {
      status_ = 413;
      fault_ = invalid("the body is larger than " + std::to_string(most) +
                       " bytes when opened: send fewer texts at a time, or raise gateway.max_body_bytes");
    } else if (state == transport::Opened::kMalformed) {
      fault_ = invalid("the body is not what its Content-Encoding says");
    }
    if (fault_) return;
    body = std::move(opened);
  }
  fault_ = find(service);
  began_ns_ = now_ns();
  if (!fault_) fault_ = make(service);
}

void ApiRequest::read_again(const DataService& service) { fault_ = make(service); }

MaybeFault ApiRequest::find(const DataService& service) {
  const ApiBody from{.bytes = body,
                     .json_size = json_size,
                     .query_model = query_model,
                     .path_model = parts.empty() ? std::string_view() : parts[0],
                     .path_version = parts.size() < 2 ? std::string_view() : parts[1],
                     .now_s = static_cast<std::int64_t>(unix_ms() / 1000),
                     .infinity = infinity,
                     .most_rows = service.config().max_rows(),
                     .auto_truncate = service.config().auto_truncate()};
  if (auto fault = task->read(from)) return fault;
  std::string name = task->model().empty() ? query_model : task->model();
  if (name.empty()) {
    std::vector<std::string> names;
    std::vector<std::string> fitting;
    for (const auto& served : service.models().served()) {
      if (served.stage) continue;
      names.push_back(served.name);
      const auto model = served.router->model(served.name);
      if (model != nullptr && task->fits(*model)) fitting.push_back(served.name);
    }
    std::string candidates;
    for (const auto& each : fitting) candidates += (candidates.empty() ? "" : ", ") + arlo::quoted(each);
    if (fitting.size() > 1) return invalid("name a model: " + candidates + " can all answer this");
    if (!fitting.empty()) names = std::move(fitting);
    if (names.size() > 1) return invalid("name a model: this gateway serves " + service.models().names());
    if (!names.empty()) name = names.front();
  }
  Router* router = nullptr;
  auto fault = service.find_model(name, task->version(), &router, &model_);
  if (!fault || fault->code != Code::kNotFound) return fault;
  for (const std::string_view type : {"query", "passage"}) {  // NIM's suffixes, for clients without the field
    const auto base = name.size() - std::min(name.size(), type.size() + 1);
    if (base == 0 || name[base] != '-' || !name.ends_with(type) || !task->meant_for(type)) continue;
    return service.find_model(name.substr(0, base), task->version(), &router, &model_);
  }
  return fault;
}

MaybeFault ApiRequest::make(const DataService& service) {
  inference::ModelInferRequest request;
  if (auto fault = task->ask(*model_, service.config().max_rows(), &request)) return fault;
  tokenized_ns_ = now_ns() - began_ns_;
  if (!task->calls()) {
    own_.emplace();
    return task->write(*model_, {}, &*own_);
  }
  if (request.id().empty() && dialect() != Dialect::kKserve) request.set_id(id);
  call_ = request.SerializeAsString();
  return {};
}

void ApiRequest::write() {
  std::string answer = std::exchange(call_, {});
  const bool pack = answer.size() > kLongAnswer;
  google::protobuf::Arena arena;
  auto& response = *google::protobuf::Arena::CreateMessage<inference::ModelInferResponse>(&arena);
  if (!response.ParseFromString(answer)) {
    fault_ = Fault{Code::kInternal, "the answer does not parse"};
    return;
  }
  std::string().swap(answer);
  own_.emplace();
  fault_ = task->write(*model_, response, &*own_);
  if (fault_) return;
  const auto line = [&](const char* name, const std::string& value) {
    own_->headers.append(name).append(": ").append(value).append("\r\n");
  };
  // Whole ms as in TEI, for clients that parse them, and tenths for browsers to show.
  std::string timing;
  const auto ms = [&](const char* header, const char* stage, std::int64_t us) {
    line(header, std::to_string(us / 1000));
    timing.append(timing.empty() ? "" : ", ").append(stage).append(";dur=").append(std::to_string(us / 1000));
    timing.append(".").append(std::to_string(us % 1000 / 100));
  };
  const bool of_text = response.parameters().contains("tokenize_us");
  const std::int64_t total_us = said(response, "total_us");
  ms("x-tokenization-time", "tokenise", of_text ? said(response, "tokenize_us") : tokenized_ns_ / 1000);
  ms("x-queue-time", "queue", said(response, "queue_us"));
  ms("x-inference-time", "execute", said(response, "execute_us"));
  ms("x-total-time", "total", total_us);
  line("Server-Timing", timing);
  line("x-compute-time", std::to_string(total_us / 1000));
  for (const char* name : {"stage", "escalated", "degraded"}) {  // of cascades; pipelines have only the last
    const auto found = response.parameters().find(name);
    if (found != response.parameters().end()) {
      line(("x-arlo-" + std::string(name)).c_str(), std::to_string(found->second.int64_param()));
    }
  }
  if (const auto characters = task->characters()) line("x-compute-characters", std::to_string(*characters));
  if (const auto tokens = said(response, "tokens"); tokens != 0) line("x-compute-tokens", std::to_string(tokens));
  if (!pack || !takes_gzip) return;
  line("Vary", "Accept-Encoding");
  if (auto packed = transport::packed(own_->body); !packed.empty() && packed.size() < own_->body.size()) {
    own_->body = std::move(packed);
    line("Content-Encoding", "gzip");
  }
}

}  // namespace arlo::gateway
