#include "gateway/front/listen.h"

#include <stdexcept>

namespace arlo::gateway {

Listening listen(const ListenOptions& options, const std::vector<grpc::Service*>& services, std::size_t queues) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, options.credentials, &port);
  for (auto* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error, not shared
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Clients may ping as often as every 10 s, calls or none: load balancers and NAT boxes drop idle connections.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
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
                                "' cannot be served: is the port in use, or a certificate wrong?");
  }
  out.address = options.address.substr(0, options.address.rfind(':')) + ":" + std::to_string(port);
  return out;
}

}  // namespace arlo::gateway
