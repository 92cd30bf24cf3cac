#include "gateway/admin/listen.h"

#include <sys/stat.h>

#include <algorithm>
#include <stdexcept>

#include "transport/address.h"

namespace arlo::gateway {
namespace {

// While a socket file is made no other user may get at it.
class PrivateFiles {
 public:
  explicit PrivateFiles(bool wanted) : wanted_(wanted), before_(wanted ? umask(S_IRWXG | S_IRWXO | S_IXUSR) : 0) {}
  ~PrivateFiles() {
    if (wanted_) umask(before_);
  }
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  const bool wanted_;
  const mode_t before_;
};

}  // namespace

Listening listen(const ListenOptions& options, const std::vector<grpc::Service*>& services, std::size_t queues) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
  for (auto* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error, not shared
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Clients may ping as often as every 10 s, calls or none: load balancers and NAT boxes drop idle connections.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  const bool local = !transport::unix_path(options.address).empty();
  const PrivateFiles private_files(local);
  Listening out;
  for (std::size_t i = 0; i < queues; ++i) out.queues.push_back(builder.AddCompletionQueue());
  out.server = builder.BuildAndStart();
  if (out.server == nullptr || port == 0) {
    for (auto& queue : out.queues) {
      queue->Shutdown();
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) {
      }
    }
    throw std::invalid_argument(std::string(options.what) + " '" + options.address +
                                "' cannot be served: is the port in use?");
  }
  out.address =
      local ? options.address : options.address.substr(0, options.address.rfind(':') + 1) + std::to_string(port);
  return out;
}

}  // namespace arlo::gateway
