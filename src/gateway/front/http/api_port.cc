#include "gateway/front/http/api_port.h"

#include <unistd.h>

#include <algorithm>
#include <list>
#include <utility>

#include "base/clock.h"
#include "transport/listener.h"

namespace arlo::gateway {
namespace {

class OnApiPort final : public Port::Part, private ApiConnections {
 public:
  OnApiPort(DataService& service, Lane& lane, const ApiLimits& limits)
      : ApiConnections(limits), service_(service), lane_(lane) {}
  ~OnApiPort() override { OnApiPort::close_all(); }
  OnApiPort(const OnApiPort&) = delete;
  OnApiPort& operator=(const OnApiPort&) = delete;

  void adopt(int fd) override {
    if (draining_ || (connections_.size() >= most() && !make_room())) {
      ::close(fd);
      return;
    }
    connections_.push_back(std::make_unique<ApiConnection>(static_cast<ApiConnections&>(*this), service_, lane_, fd));
    count(1);
  }

  void run_out() override {
    while (make_room() && connections_.size() > most()) {
    }
  }

  void drain() override {
    draining_ = true;
    for (auto at = connections_.begin(); at != connections_.end();) {
      auto& connection = **at++;
      if (connection.idle()) {
        close(connection);
      } else {
        connection.end_with_answer();
      }
    }
  }
  void close_all() override {
    while (!connections_.empty()) close(*connections_.front());
  }
  [[nodiscard]] std::size_t connections() const override { return connections_.size(); }

 private:
  void close(ApiConnection& connection) override {
    const auto found = std::find_if(connections_.begin(), connections_.end(),
                                    [&](const auto& each) { return each.get() == &connection; });
    connections_.erase(found);
    count(-1);
  }
  void count(int change) {
    if (!limits().probes) service_.usage().connections(change);
  }
  [[nodiscard]] bool draining() const override { return draining_; }
  bool make_room_in_memory() override {
    const TimeNs now = now_ns();
    while (held > limits().memory) {
      ApiConnection* most = nullptr;
      for (const auto& each : connections_) {
        if (each->stalled(now) && (most == nullptr || each->held() > most->held())) most = each.get();
      }
      if (most == nullptr) return false;
      service_.usage().over_limit("bytes of requests and answers");
      close(*most);
    }
    return true;
  }

  [[nodiscard]] std::size_t most() const {
    const auto share = transport::descriptors_for_connections() / limits().sharers;
    return std::max<std::size_t>(1, std::min(limits().connections, share));
  }

  // Closes the connection that has waited longest for its client: first those without any request yet, then those
  // between requests, then those in a request or an answer.
  bool make_room() {
    const TimeNs now = now_ns();
    ApiConnection* least = nullptr;
    for (const auto& each : connections_) {
      if (each->wanted(now) == ApiConnection::Wanted::kBusy) continue;
      const auto rank = [now](const auto& of) { return std::pair(of.wanted(now), of.since()); };
      if (least == nullptr || rank(*each) < rank(*least)) least = each.get();
    }
    if (least == nullptr) return false;
    close(*least);
    return true;
  }

  DataService& service_;
  Lane& lane_;
  bool draining_ = false;
  std::list<std::unique_ptr<ApiConnection>> connections_;
};

}  // namespace

ApiLimits api_limits(const v1::GatewayConfig& config, std::size_t lanes) {
  const auto& from = config.limits();
  ApiLimits limits;
  limits.connections = std::max<std::size_t>(1, from.connections() / lanes);
  limits.sharers = 2 * lanes;
  limits.memory = std::max<std::size_t>(from.memory_bytes() / lanes,
                                        4 * std::max(config.max_message_bytes(), config.max_body_bytes()));
  limits.head_bytes = from.header_bytes();
  limits.body_bytes = config.max_body_bytes();
  limits.head_time = from.header_timeout_ms() * kMs;
  limits.body_time = from.body_timeout_ms() * kMs;
  limits.idle_time = from.ping_after_ms() * kMs;
  limits.origins.assign(config.cors_origins().begin(), config.cors_origins().end());
  limits.first_time = from.preface_timeout_ms() * kMs;
  if (const auto& tls = config.tls(); !tls.certificate_file().empty()) {  // the data port has validated it
    limits.tls = transport::make_tls({tls.certificate_file(), tls.key_file(), tls.client_ca_file()},
                                     transport::Protocol::kHttp1);
  }
  return limits;
}

ProbePort::ProbePort(DataService& service, const std::string& address) {
  constexpr TimeNs kTime = 5000 * kMs;
  ApiLimits limits;
  limits.probes = true;
  limits.connections = 256;
  limits.memory = 64U << 20;
  limits.head_bytes = kLongestHead;
  limits.body_bytes = kLongestHead;
  limits.head_time = limits.body_time = limits.idle_time = limits.first_time = kTime;
  lanes_.push_back(std::make_unique<Lane>());
  port_ = api_port(service, limits, "http_address", address, lanes_);
  lanes_.front()->start();
}

std::unique_ptr<Port> api_port(DataService& service, const ApiLimits& limits, const char* option,
                               const std::string& address, Lanes& lanes) {
  return std::make_unique<Port>(option, address, lanes,
                                [&](Lane& lane) { return std::make_unique<OnApiPort>(service, lane, limits); });
}

}  // namespace arlo::gateway
