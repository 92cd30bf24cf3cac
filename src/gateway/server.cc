#include "gateway/server.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "gateway/admin/admin_service.h"
#include "gateway/config.h"
#include "gateway/desk/models.h"
#include "gateway/fleet/lane.h"
#include "gateway/front/data_port.h"
#include "gateway/front/data_service.h"
#include "gateway/front/http/api_port.h"
#include "gateway/log.h"
#include "gateway/text/helpers.h"
#include "rewrite/model.h"
#include "transport/listener.h"

namespace arlo::gateway {
namespace {

// One thread carries some tens of thousands of small requests a second; more threads cost wake-ups among each other.
std::size_t thread_count(std::uint32_t configured) {
  constexpr unsigned kCoresPerThread = 8;
  if (configured != 0) return configured;
  return std::max(1U, std::thread::hardware_concurrency() / kCoresPerThread);
}

// Each connection takes a descriptor. The soft limit of 1,024 exists for programs that use select(), which we do not.
void raise_descriptor_limit(const v1::GatewayConfig& config) {
  constexpr rlim_t kFew = 8192;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 && getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  }
  const std::size_t share = transport::descriptors_for_connections() / (config.api_address().empty() ? 1 : 2);
  if (limit.rlim_cur < kFew && share < config.limits().connections()) {
    log(LogLevel::kWarning, "few_descriptors",
        {{"limit", static_cast<std::int64_t>(limit.rlim_cur)},
         {"connections", static_cast<std::int64_t>(share)},
         {"advice",
          "raise the hard limit of open files (LimitNOFILE of a systemd unit) above the connections expected"}});
  }
}

void write_ready_file(const std::string& path, const std::string& grpc_address, const std::string& api_address,
                      const std::string& http_address, const std::string& admin_address) {
  if (path.empty()) return;
  const std::string temporary = path + ".tmp";
  std::ofstream(temporary) << nlohmann::json{{"grpc", grpc_address},
                                             {"api", api_address},
                                             {"http", http_address},
                                             {"admin", admin_address}}
                                  .dump()
                           << "\n";
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    throw std::invalid_argument("cannot write ready_file '" + path + "'");
}

// libc keeps the memory of a flood of requests. Memory that stays free from one look to the next returns to the system.
class SpareMemory {
 public:
  void look() {
    constexpr std::size_t kFew = 32 << 20;  // bytes
    const std::size_t now = mallinfo2().fordblks;
    if (std::min(now, last_) > kFew) {
      malloc_trim(0);
      last_ = 0;
    } else {
      last_ = now;
    }
  }

 private:
  std::size_t last_ = 0;  // free at the previous look
};

// Waits for SIGTERM or SIGINT.
int wait_for(const sigset_t& signals) {
  constexpr timespec kBetween{.tv_sec = 5, .tv_nsec = 0};
  SpareMemory spare;
  for (;;) {
    const int signal = sigtimedwait(&signals, nullptr, &kBetween);
    if (signal > 0) return signal;
    spare.look();
  }
}

}  // namespace

int serve(const v1::GatewayConfig& config) {
  // Blocked before any thread exists, so that all inherit the mask and only sigwait() sees the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  set_log_level(parse_log_level(config.log_level()));
  capture_library_logs();
  raise_descriptor_limit(config);
  const auto secret = [](const std::string& file) { return file.empty() ? "" : read_secret(file); };
  const DataService::Tokens tokens{.any = secret(config.bearer_token_file()), .bulk = secret(config.bulk_token_file())};
  if (!tokens.bulk.empty() && tokens.bulk == tokens.any)
    throw std::invalid_argument(
        "bearer_token_file and bulk_token_file hold the same token, so every request would be bulk: give two");

  Models models(config);
  const auto& command = config.text_command();
  TextHelpers helpers({command.begin(), command.end()}, config.text_helpers());
  if (!command.empty() && config.text_helpers() != 0) text_has_helpers();
  DataService data_service(models, config, tokens, helpers);
  Lanes lanes(thread_count(config.threads()));
  for (auto& lane : lanes) lane = std::make_unique<Lane>();
  DataPort data_port(data_service, config, lanes);
  const auto api = api_port(data_service, api_limits(config, lanes.size()), "api_address", config.api_address(), lanes);
  models.start(*lanes.front());
  for (const auto& lane : lanes) lane->start();
  // The parts end in this order, including when a later one cannot start.
  const auto stop = [&](std::chrono::milliseconds patience) {
    models.close();
    api->drain();
    data_port.drain(patience, [&api] { api->close_all(); });
    models.stop();  // waits for calls to workers, which end on the lanes
    for (const auto& lane : lanes) lane->stop();
  };
  try {
    const AdminServer admin(models, config.admin_address());
    const ProbePort http(data_service, config.http_address());
    if (!transport::is_local(config.admin_address())) {
      log(LogLevel::kWarning, "admin_port_is_open",
          {{"admin", config.admin_address()},
           {"effect", "whoever reaches it can send the requests of all clients elsewhere: it asks for no key"}});
    }
    write_ready_file(config.ready_file(), data_port.address(), api->address(), http.address(), admin.address());
    log(LogLevel::kInfo, "gateway_started",
        {{"grpc", data_port.address()},
         {"api", api->address()},
         {"http", http.address()},
         {"admin", admin.address()},
         {"policy", config.dispatch().policy()}});
    const int signal = wait_for(signals);
    log(LogLevel::kInfo, "gateway_draining", {{"signal", std::int64_t{signal}}});
    std::thread([signals] {
      int second = 0;
      sigwait(&signals, &second);
      log(LogLevel::kWarning, "gateway_forced", {{"signal", std::int64_t{second}}});
      std::_Exit(130);
    }).detach();
    // Probes of /readyz or grpc.health.v1 now route traffic elsewhere; requests that still come are served.
    models.close();
    std::this_thread::sleep_for(std::chrono::milliseconds(config.drain_delay_ms()));
    stop(std::chrono::milliseconds(config.drain_timeout_ms()));
  } catch (...) {
    stop(std::chrono::milliseconds(0));
    throw;
  }
  log(LogLevel::kInfo, "gateway_stopped");
  return 0;
}

}  // namespace arlo::gateway
