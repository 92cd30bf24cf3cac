#include "gateway/front/http_server.h"

#include <httplib.h>
#include <prometheus/text_serializer.h>

#include <stdexcept>
#include <thread>

#include "gateway/desk/metrics.h"

namespace arlo::gateway {

struct HttpServer::Impl {
  httplib::Server server;
  std::thread thread;
};

HttpServer::HttpServer(Router& router, const std::string& address) : impl_(std::make_unique<Impl>()) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos) throw std::invalid_argument("http_address '" + address + "' is not host:port");
  const std::string host = address.substr(0, colon);
  int port = 0;
  try {
    port = std::stoi(address.substr(colon + 1));
  } catch (const std::exception&) {
    throw std::invalid_argument("http_address '" + address + "' is not host:port");
  }
  auto& server = impl_->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(2); };
  // Without it two gateways could share the port, each answering some of the scrapes.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.Get("/metrics", [&router](const httplib::Request&, httplib::Response& response) {
    response.set_content(prometheus::TextSerializer().Serialize(collect_metrics(router)), "text/plain; version=0.0.4");
  });
  server.Get("/livez",
             [](const httplib::Request&, httplib::Response& response) { response.set_content("ok\n", "text/plain"); });
  server.Get("/readyz", [&router](const httplib::Request&, httplib::Response& response) {
    const bool ready = router.ready();
    response.status = ready ? 200 : 503;
    response.set_content(ready ? "ok\n" : "no active instance\n", "text/plain");
  });
  if (port == 0) {
    port = server.bind_to_any_port(host);
    if (port < 0) throw std::invalid_argument("http_address '" + address + "' cannot be bound");
  } else if (!server.bind_to_port(host, port)) {
    throw std::invalid_argument("http_address '" + address + "' cannot be bound: is the port in use?");
  }
  address_ = host + ":" + std::to_string(port);
  impl_->thread = std::thread([this] { impl_->server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::yield();
}

HttpServer::~HttpServer() {
  impl_->server.stop();
  impl_->thread.join();
}

}  // namespace arlo::gateway
