#include "gateway/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

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

#include "gateway/admin_service.h"
#include "gateway/config.h"
#include "gateway/data_service.h"
#include "gateway/http_server.h"
#include "gateway/log.h"
#include "gateway/router.h"

namespace arlo::gateway {
namespace {

std::shared_ptr<grpc::ServerCredentials> data_credentials(const v1::TlsConfig& tls) {
  if (tls.certificate_file().empty()) return grpc::InsecureServerCredentials();
  const bool mutual = !tls.client_ca_file().empty();
  grpc::SslServerCredentialsOptions options(mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_key_cert_pairs.push_back({read_file(tls.key_file()), read_file(tls.certificate_file())});
  if (mutual) options.pem_root_certs = read_file(tls.client_ca_file());
  return grpc::SslServerCredentials(options);
}

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

Listening listen(grpc::Service& service, const std::string& address, std::shared_ptr<grpc::ServerCredentials> credentials,
                 std::uint64_t max_message_bytes, const char* what) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, std::move(credentials), &port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error, not shared
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Clients may ping as often as every 10 s, calls or none: load balancers and NAT boxes drop idle connections.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  Listening out;
  out.server = builder.BuildAndStart();
  if (out.server == nullptr || port == 0) {
    throw std::invalid_argument(std::string(what) + " '" + address +
                                "' cannot be served: is the port in use, or a certificate wrong?");
  }
  out.address = host_of(address) + ":" + std::to_string(port);
  return out;
}

void write_ready_file(const std::string& path, const std::string& grpc_address, const std::string& http_address,
                      const std::string& admin_address) {
  if (path.empty()) return;
  const std::string temporary = path + ".tmp";
  std::ofstream(temporary) << nlohmann::json{{"grpc", grpc_address}, {"http", http_address}, {"admin", admin_address}}.dump()
                           << "\n";
  if (std::rename(temporary.c_str(), path.c_str()) != 0) throw std::invalid_argument("cannot write ready_file '" + path + "'");
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

  set_log_level(parse_log_level(config.log_level()));
  grpc::EnableDefaultHealthCheckService(true);
  const std::string token = config.bearer_token_file().empty() ? "" : read_secret(config.bearer_token_file());
  constexpr std::uint64_t kAdminMessageBytes = 64U << 20;

  Router router(config);
  DataService data_service(router, config, token);
  AdminService admin_service(router);
  router.start();
  auto data = listen(data_service, config.grpc_address(), data_credentials(config.tls()), config.max_message_bytes(),
                     "grpc_address");
  auto admin = listen(admin_service, config.admin_address(), grpc::InsecureServerCredentials(), kAdminMessageBytes,
                      "admin_address");
  {
    const HttpServer http(router, config.http_address());
    write_ready_file(config.ready_file(), data.address, http.address(), admin.address);
    log(LogLevel::kInfo, "gateway_started",
        {{"grpc", data.address}, {"http", http.address()}, {"admin", admin.address}, {"policy", config.dispatch().policy()}});

    int signal = 0;
    sigwait(&signals, &signal);
    log(LogLevel::kInfo, "gateway_draining", {{"signal", std::int64_t{signal}}});
    std::thread([signals] {
      int second = 0;
      sigwait(&signals, &second);
      log(LogLevel::kWarning, "gateway_forced", {{"signal", std::int64_t{second}}});
      std::_Exit(130);
    }).detach();
    const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(config.drain_timeout_ms());
    data_service.shut_down_streams();
    data.server->Shutdown(deadline);
    router.stop();
    admin.server->Shutdown(std::chrono::system_clock::now());
  }
  log(LogLevel::kInfo, "gateway_stopped");
  return 0;
}

}  // namespace arlo::gateway
