#include "gateway/trace/tracer.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "base/clock.h"
#include "base/utf8.h"
#include "gateway/log.h"

namespace arlo::gateway {
namespace {

constexpr auto kExportPause = std::chrono::milliseconds(500);  // between two requests to the collector
constexpr TimeNs kPatience = 2'000'000'000;                    // for one request
constexpr std::size_t kRows = 8;                               // maximum rows of a request that get spans

std::mt19937_64& random_bits() {
  thread_local std::mt19937_64 bits{std::random_device{}()};
  return bits;
}

std::uint64_t new_id() {
  const auto id = random_bits()();
  return id == 0 ? 1 : id;
}

std::string printed(const std::string& text) { return valid_utf8(text) ? text : printable(text); }

}  // namespace

Tracer::Tracer(const v1::TracingConfig& config, PortUsage& usage)
    : share_(config.sample()), most_(config.queue()), target_(read_target(config.otlp_endpoint())), usage_(usage) {
  if (!target_.host_port.empty()) thread_ = std::thread([this] { run(); });
}

Tracer::~Tracer() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::unique_ptr<Trace> Tracer::begin(std::string_view traceparent, TimeNs now) {
  const bool sends = !target_.host_port.empty();
  if (traceparent.empty() && !sends) return nullptr;
  auto trace = std::make_unique<Trace>();
  trace->began = now;
  if (auto given = read_traceparent(traceparent)) {
    trace->parent = std::move(*given);
    if (sends && trace->parent.sampled()) trace->own = new_id();
    return trace;
  }
  if (!sends || std::uniform_real_distribution<>(0, 1)(random_bits()) >= share_) return nullptr;
  trace->parent.trace_id = hex_of(random_bits()()) + hex_of(new_id());
  trace->parent.flags = TraceParent::kSampled;
  trace->own = new_id();
  return trace;
}

void Tracer::ended(const Call& call, const Fault& fault, TimeNs now) {
  if (call.trace == nullptr || call.trace->own == 0) return;
  const Trace& trace = *call.trace;
  const auto unix_now = unix_ns();
  const auto at = [&](TimeNs when) { return unix_now - static_cast<std::uint64_t>(std::max<TimeNs>(0, now - when)); };
  std::vector<Span> spans;
  const auto add = [&](std::uint64_t id, std::uint64_t parent, std::string name, TimeNs from, TimeNs to) -> Span& {
    Span& span = spans.emplace_back();
    span.trace_id = trace.parent.trace_id;
    span.id = id;
    span.parent = parent;
    span.name = std::move(name);
    span.start_ns = at(from);
    span.end_ns = at(std::max(from, to));
    return span;
  };
  spans.reserve(3 + std::min(call.rows.size(), kRows));
  Span& whole = add(trace.own, trace.parent.span, "infer", trace.began, now);
  whole.serves = true;
  if (call.model != nullptr) {
    whole.name += " " + call.model->name;
    whole.texts.emplace_back("arlo.model", call.model->name);
  }
  if (!trace.request_id.empty()) whole.texts.emplace_back("arlo.request_id", printed(trace.request_id));
  whole.numbers.emplace_back("arlo.rows", static_cast<std::int64_t>(call.rows.size()));
  whole.numbers.emplace_back("rpc.grpc.status_code", static_cast<std::int64_t>(fault.code));
  if (fault.code != Code::kOk) whole.fault = printed(fault.message);
  if (call.tokenized_ns != 0) {
    add(trace.execution(Call::kNoRow, 0), trace.own, "tokenise", trace.began, trace.began + call.tokenized_ns);
  }
  const TimeNs ready = call.received_ns + call.tokenized_ns;
  TimeNs started = 0;
  for (const auto& row : call.rows) {
    if (row.started_ns != 0) started = started == 0 ? row.started_ns : std::min(started, row.started_ns);
  }
  if (!call.rows.empty()) {
    add(trace.execution(Call::kNoRow, 1), trace.own, "queue", ready, started != 0 ? started : now);
  }
  for (std::size_t i = 0; i < std::min(call.rows.size(), kRows); ++i) {
    const Row& row = call.rows[i];
    if (row.started_ns == 0) continue;
    Span& span = add(trace.execution(row.index, row.attempts), trace.own, "execute", row.started_ns,
                     row.ended_ns != 0 ? row.ended_ns : now);
    span.numbers = {{"arlo.row", row.index},
                    {"arlo.level", row.level},
                    {"arlo.length", row.length},
                    {"arlo.batch_rows", row.batch_rows},
                    {"arlo.computed_tokens", row.padded},
                    {"arlo.attempt", row.attempts}};
  }
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || waiting_.size() + spans.size() > most_) {
    usage_.traces(PortUsage::Trace::kLost, 1);
    return;
  }
  std::move(spans.begin(), spans.end(), std::back_inserter(waiting_));
}

void Tracer::run() {
  std::vector<Span> spans;
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kExportPause, [this] { return ending_; });
      last = ending_;
      spans.swap(waiting_);
    }
    if (spans.empty()) continue;
    const auto traces = static_cast<std::uint64_t>(
        std::count_if(spans.begin(), spans.end(), [](const Span& span) { return span.serves; }));
    const std::string why = post(target_, otlp_json(spans), kPatience);
    usage_.traces(why.empty() ? PortUsage::Trace::kSent : PortUsage::Trace::kLost, traces);
    if (!why.empty()) {
      log_some(LogLevel::kWarning, "traces_lost",
               {{"collector", target_.host_port}, {"reason", why}, {"traces", static_cast<std::int64_t>(traces)}});
    }
    spans.clear();
  }
}

std::string otlp_json(const std::vector<Span>& spans) {
  using nlohmann::json;
  auto list = json::array();
  const auto text = [](const char* key, const std::string& value) {
    return json{{"key", key}, {"value", {{"stringValue", value}}}};
  };
  for (const auto& span : spans) {
    auto attributes = json::array();
    for (const auto& [key, value] : span.texts) attributes.push_back(text(key, value));
    for (const auto& [key, value] : span.numbers) {
      attributes.push_back({{"key", key}, {"value", {{"intValue", std::to_string(value)}}}});
    }
    constexpr int kInternal = 1;
    constexpr int kServer = 2;
    constexpr int kError = 2;
    json one = {{"traceId", span.trace_id},
                {"spanId", hex_of(span.id)},
                {"name", span.name},
                {"kind", span.serves ? kServer : kInternal},
                {"startTimeUnixNano", std::to_string(span.start_ns)},
                {"endTimeUnixNano", std::to_string(span.end_ns)},
                {"attributes", std::move(attributes)}};
    if (span.parent != 0) one["parentSpanId"] = hex_of(span.parent);
    if (!span.fault.empty()) one["status"] = {{"code", kError}, {"message", span.fault}};
    list.push_back(std::move(one));
  }
  const json resource = {{"attributes", json::array({text("service.name", "arlo-gateway")})}};
  const json scope = {{"scope", {{"name", "arlo"}}}, {"spans", std::move(list)}};
  const json whole = {
      {"resourceSpans", json::array({json{{"resource", resource}, {"scopeSpans", json::array({scope})}}})}};
  return whole.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace arlo::gateway
