#include "gateway/front/data_port.h"

#include <malloc.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "gateway/config.h"
#include "gateway/front/encode.h"
#include "gateway/front/infer_call.h"
#include "gateway/front/unary.h"
#include "gateway/log.h"
#include "transport/server.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kLargestMessages = 4;         // minimum for one connection: some of the largest always fit
constexpr std::size_t kLongestQuestion = 64 << 10;  // bytes of a request about the gateway or a model
constexpr std::size_t kWorthTrimming = 64 << 20;
constexpr TimeNs kTrim = 3'000'000'000;  // between checks of the memory
constexpr auto kLook = std::chrono::milliseconds(5);
constexpr auto kLastWords = std::chrono::milliseconds(1000);  // for clients to close idle connections

class InfoCall final : public UnaryHandler {
 public:
  InfoCall(const DataService::Method& method, transport::ServerCall& call) : UnaryHandler(call), method_(method) {}
  void closed(bool) override {}

 private:
  void received(std::string bytes) override {
    std::string response;
    auto fault = bytes.size() <= kLongestQuestion
                     ? method_(call_, bytes, &response)
                     : invalid("the request has more than " + std::to_string(kLongestQuestion) +
                               " bytes: it names a model, and holds nothing else");
    if (fault) {
      answer_fault(call_, *fault);
    } else {
      call_.send(std::move(response));
      call_.finish(0, {}, {});
    }
  }

  const DataService::Method& method_;
};

transport::ServerOptions options_of(const v1::GatewayConfig& config, std::size_t lanes) {
  const auto& limits = config.limits();
  const auto largest = static_cast<std::size_t>(config.max_message_bytes());
  transport::ServerOptions options;
  options.connections = std::max<std::size_t>(1, limits.connections() / lanes);
  options.sharers = lanes * (config.api_address().empty() ? 1 : 2);
  options.memory = std::max(limits.memory_bytes() / lanes, kLargestMessages * largest);
  options.preface_time = limits.preface_timeout_ms() * kMs;
  options.ping_after = limits.ping_after_ms() * kMs;
  if (limits.connection_age_ms() != 0) options.oldest = static_cast<TimeNs>(limits.connection_age_ms()) * kMs;
  options.grace = config.drain_timeout_ms() * kMs;
  auto& each = options.limits;
  each.streams = limits.streams();
  each.header_bytes = limits.header_bytes();
  each.message_bytes = static_cast<std::uint32_t>(largest);
  each.held_bytes = std::max<std::size_t>(limits.connection_memory_bytes(), kLargestMessages * largest);
  each.resets = limits.resets();
  each.body_time = limits.body_timeout_ms() * kMs;
  each.frames.pings = limits.pings();
  each.frames.empty_frames = limits.empty_frames();
  each.frames.header_time = limits.header_timeout_ms() * kMs;
  each.frames.data_time = each.body_time;
  each.frames.header_block_bytes = std::size_t{4} * limits.header_bytes();
  if (!config.tls().certificate_file().empty()) {
    const auto& tls = config.tls();
    for (const auto* file : {&tls.certificate_file(), &tls.key_file(), &tls.client_ca_file()}) {
      if (!file->empty()) read_file(*file);  // names the missing file
    }
    options.tls = transport::make_tls({tls.certificate_file(), tls.key_file(), tls.client_ca_file()});
    if (transport::has_expired(options.tls)) {
      log(LogLevel::kError, "certificate_expired",
          {{"file", tls.certificate_file()}, {"effect", "clients that check it refuse the connection"}});
    }
  }
  return options;
}

class OnDataPort final : public Port::Part, public transport::Service, private transport::Loop::Timer {
 public:
  OnDataPort(DataService& service, Lane& lane, const transport::ServerOptions& options)
      : service_(service), lane_(lane), server_(lane.loop(), *this, options) {
    due();
  }
  ~OnDataPort() override { lane_.loop().clear(*this); }
  OnDataPort(const OnDataPort&) = delete;
  OnDataPort& operator=(const OnDataPort&) = delete;

  std::unique_ptr<transport::CallHandler> begin(transport::ServerCall& call) override {
    if (call.path() == "/inference.GRPCInferenceService/ModelInfer") return infer_call(service_, lane_, call);
    if (call.path() == "/inference.GRPCInferenceService/ModelStreamInfer") {
      return stream_call(service_, lane_, streams_, call);
    }
    const auto* method = service_.method(call.path());
    if (method == nullptr) return nullptr;
    return std::make_unique<InfoCall>(*method, call);
  }
  void aside(const void* client, const std::function<void()>& work, const std::function<void()>& then) override {
    lane_.aside(Lane::kHuge + 1).run(client, work, then);  // it may grow to any size
  }
  void connected(int change) override { service_.usage().connections(change); }
  void offended(const std::string& peer, std::string_view limit) override {
    service_.usage().over_limit(limit);
    log_some(LogLevel::kWarning, "client_over_limit", {{"client", peer}, {"limit", limit}});
  }

  void adopt(int fd) override { server_.adopt(fd); }
  void run_out() override { server_.run_out(); }
  void drain() override {
    for (auto* stream : OpenStreams(streams_)) stream->close();
    server_.drain();
  }
  void close_all() override { server_.close_all(); }
  [[nodiscard]] std::size_t connections() const override { return server_.connections(); }

 private:
  // Returns memory that clients no longer hold to the system; the allocator would keep it.
  void due() override {
    auto& memory = server_.memory();
    if (memory.peak - memory.used > kWorthTrimming) {
      memory.peak = memory.used;
      lane_.aside(Lane::kHuge + 1).run(nullptr, [] { malloc_trim(0); }, [] {});
    }
    lane_.loop().set(*this, now_ns() + kTrim);
  }

  DataService& service_;
  Lane& lane_;
  OpenStreams streams_;
  transport::Server server_;
};

}  // namespace

DataPort::DataPort(DataService& service, const v1::GatewayConfig& config, Lanes& lanes)
    : service_(service),
      port_("grpc_address", config.grpc_address(), lanes,
            [&service, options = options_of(config, lanes.size())](Lane& lane) {
              return std::make_unique<OnDataPort>(service, lane, options);
            }) {}

void DataPort::drain(std::chrono::milliseconds patience, const std::function<void()>& cut) {
  using Clock = std::chrono::steady_clock;
  port_.drain();
  const auto end = Clock::now() + patience;
  auto busy = Clock::now();  // time of the last call
  while (Clock::now() < end && Clock::now() - busy < kLastWords) {
    if (service_.open_calls() != 0) {
      busy = Clock::now();
    } else if (port_.connections() == 0) {
      break;
    }
    std::this_thread::sleep_for(kLook);
  }
  port_.close_all();
  cut();
  while (service_.open_calls() != 0) std::this_thread::sleep_for(kLook);
}

}  // namespace arlo::gateway
