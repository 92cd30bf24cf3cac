#include "gateway/server.h"

#include <absl/synchronization/mutex.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gateway/admin/admin_service.h"
#include "gateway/config.h"
#include "gateway/desk/models.h"
#include "gateway/front/address.h"
#include "gateway/front/data_service.h"
#include "gateway/front/health_service.h"
#include "gateway/front/http_server.h"
#include "gateway/front/listen.h"
#include "gateway/front/rpc.h"
#include "gateway/log.h"

namespace arlo::gateway {
namespace {

// The first certificate of a PEM chain is past its date. Whether it is one at all, gRPC says when it loads it.
bool has_expired(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                     &BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> read(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr),
                                                         &X509_free);
  return read != nullptr && X509_cmp_current_time(X509_get0_notAfter(read.get())) < 0;
}

std::shared_ptr<grpc::ServerCredentials> data_credentials(const v1::TlsConfig& tls) {
  if (tls.certificate_file().empty()) return grpc::InsecureServerCredentials();
  const bool mutual = !tls.client_ca_file().empty();
  grpc::SslServerCredentialsOptions options(mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  const std::string certificate = read_file(tls.certificate_file());
  if (has_expired(certificate)) {
    log(LogLevel::kError, "certificate_expired",
        {{"file", tls.certificate_file()}, {"effect", "clients that check it refuse the connection"}});
  }
  options.pem_key_cert_pairs.push_back({read_file(tls.key_file()), certificate});
  if (mutual) options.pem_root_certs = read_file(tls.client_ca_file());
  return grpc::SslServerCredentials(options);
}

// Its turn comes when the queue's thread has handled every event that was there before it.
class Fence final : public Event {
 public:
  explicit Fence(grpc::CompletionQueue& queue) { alarm_.Set(&queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), tag()); }
  void proceed(bool) override { reached_.set_value(); }
  void wait() { reached_.get_future().wait(); }

 private:
  std::promise<void> reached_;
  grpc::Alarm alarm_;
};

// The queues of the data port with one thread each.
class Pollers {
 public:
  explicit Pollers(std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues) : queues_(std::move(queues)) {}
  ~Pollers() { stop(); }
  void start() {
    for (auto& queue : queues_) threads_.emplace_back([&queue] { poll_until_shutdown(*queue); });
  }
  void settle() {
    for (auto& queue : queues_) Fence(*queue).wait();
  }
  void stop() {
    for (auto& queue : queues_) queue->Shutdown();
    for (auto& thread : threads_) thread.join();
    queues_.clear();
    threads_.clear();
  }
  [[nodiscard]] const std::vector<std::unique_ptr<grpc::ServerCompletionQueue>>& queues() const { return queues_; }

 private:
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::thread> threads_;
};

// One thread carries some tens of thousands of small requests a second; further ones cost wake-ups among each other.
std::size_t thread_count(std::uint32_t configured) {
  constexpr unsigned kCoresPerThread = 8;
  if (configured != 0) return configured;
  return std::max(1U, std::thread::hardware_concurrency() / kCoresPerThread);
}

// Each connection takes a descriptor, and gRPC 1.51 accepts none ever again once they have run out (CVE-2023-4785). The
// soft limit of 1,024 is there for programs that use select(), which nothing here does.
void raise_descriptor_limit() {
  constexpr rlim_t kFew = 8192;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 && getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  }
  if (limit.rlim_cur < kFew) {
    log(LogLevel::kWarning, "few_descriptors",
        {{"limit", static_cast<std::int64_t>(limit.rlim_cur)},
         {"advice",
          "raise the hard limit of open files (LimitNOFILE of a systemd unit) above the connections expected"}});
  }
}

void write_ready_file(const std::string& path, const std::string& grpc_address, const std::string& http_address,
                      const std::string& admin_address) {
  if (path.empty()) return;
  const std::string temporary = path + ".tmp";
  std::ofstream(temporary)
      << nlohmann::json{{"grpc", grpc_address}, {"http", http_address}, {"admin", admin_address}}.dump() << "\n";
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    throw std::invalid_argument("cannot write ready_file '" + path + "'");
}

}  // namespace

int serve(const v1::GatewayConfig& config) {
  // Before any thread exists, so that all inherit the mask and only sigwait() sees the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  // Distributions build abseil with its lock-order checker on, which costs gRPC's locks several per cent of the CPU.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  set_log_level(parse_log_level(config.log_level()));
  capture_library_logs();
  raise_descriptor_limit();
  const std::string token = config.bearer_token_file().empty() ? "" : read_secret(config.bearer_token_file());

  Models models(config);
  DataService data_service(models, config, token);
  HealthService health_service;
  ListenOptions options;
  options.address = config.grpc_address();
  options.what = "grpc_address";
  options.credentials = data_credentials(config.tls());
  options.max_message_bytes = config.max_message_bytes();
  options.strangers = true;
  auto data = listen(options, {&data_service, &health_service}, thread_count(config.threads()));
  Pollers pollers(std::move(data.queues));
  for (const auto& queue : pollers.queues()) data_service.serve(*queue);
  serve_health(health_service, models, *pollers.queues().front());
  models.start(*pollers.queues().front());
  pollers.start();
  // In this order the parts end when one of the later ones cannot start, too.
  const auto stop = [&](std::chrono::milliseconds patience) {
    models.close();
    data_service.shut_down_streams();
    data.server->Shutdown(std::chrono::system_clock::now() + patience);
    // Shut-down queues take no operations, so all that could start one comes to its end first.
    pollers.settle();  // calls that were received have been seen
    data_service.wait_until_over();
    models.stop();  // waits for calls to workers, which end on the pollers' queues
    pollers.stop();
  };
  try {
    const AdminServer admin(models, config.admin_address());
    const HttpServer http(models, config.http_address());
    if (!is_local(config.admin_address())) {
      log(LogLevel::kWarning, "admin_port_is_open",
          {{"admin", config.admin_address()},
           {"effect", "whoever reaches it can send the requests of all clients elsewhere: it asks for no key"}});
    }
    write_ready_file(config.ready_file(), data.address, http.address(), admin.address());
    log(LogLevel::kInfo, "gateway_started",
        {{"grpc", data.address},
         {"http", http.address()},
         {"admin", admin.address()},
         {"policy", config.dispatch().policy()}});
    int signal = 0;
    sigwait(&signals, &signal);
    log(LogLevel::kInfo, "gateway_draining", {{"signal", std::int64_t{signal}}});
    std::thread([signals] {
      int second = 0;
      sigwait(&signals, &second);
      log(LogLevel::kWarning, "gateway_forced", {{"signal", std::int64_t{second}}});
      std::_Exit(130);
    }).detach();
    // Whoever asks /readyz or grpc.health.v1 now sends elsewhere; what still comes until then is served.
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
