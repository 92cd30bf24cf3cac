#include "gateway/front/listen.h"

#include <grpc/compression.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <algorithm>
#include <stdexcept>

#include "gateway/front/address.h"

namespace arlo::gateway {
namespace {

// Of one connection. Clients queue further requests by themselves.
constexpr int kMostStreams = 2048;
constexpr int kMetadataBytes = 16 * 1024;
// What gRPC may hold for all of them in messages that come in. It cannot be exact: the largest message must fit.
constexpr std::size_t kQuotaBytes = std::size_t{1} << 30;
constexpr std::size_t kQuotaMessages = 8;

void bound(grpc::ServerBuilder& builder, const ListenOptions& options) {
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytes);
  // A compressed message is a thousand times larger once read, and gRPC 1.51 asks for its size too late.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  grpc::ResourceQuota quota("data");
  quota.Resize(std::max(kQuotaBytes, kQuotaMessages * static_cast<std::size_t>(options.max_message_bytes)));
  builder.SetResourceQuota(quota);
}

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
  builder.AddListeningPort(options.address, options.credentials, &port);
  for (auto* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error, not shared
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Clients may ping as often as every 10 s, calls or none: load balancers and NAT boxes drop idle connections.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  if (options.strangers) bound(builder, options);
  const bool local = !unix_path(options.address).empty();
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
                                "' cannot be served: is the port in use, or a certificate wrong?");
  }
  out.address =
      local ? options.address : options.address.substr(0, options.address.rfind(':') + 1) + std::to_string(port);
  return out;
}

}  // namespace arlo::gateway
