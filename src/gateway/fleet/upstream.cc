#include "gateway/fleet/upstream.h"

#include <grpc/slice.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <limits>
#include <string>
#include <utility>

namespace arlo::gateway {
namespace {

constexpr const char* kInferMethod = "/inference.GRPCInferenceService/ModelInfer";

std::shared_ptr<grpc::Channel> connect(const std::string& endpoint) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  args.SetMaxSendMessageSize(std::numeric_limits<int>::max());
  // A worker that restarts is wanted back at once, not after gRPC's default of up to two minutes.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Pings to size the window cost more than they bring on a machine-local or rack-local link.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Of gRPC's filters only the deadline's is of use here, to health checks: no compression, no size limits, no service
  // configuration.
  args.SetInt(GRPC_ARG_MINIMAL_STACK, 1);
  args.SetInt(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 1);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // the desk retries, on another instance
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), args);
}

bool contains(const std::string& text, const char* what) { return text.find(what) != std::string::npos; }

}  // namespace

Worker::Worker(const std::string& endpoint_)
    : endpoint(endpoint_),
      channel(connect(endpoint_)),
      infer_method(kInferMethod, grpc::internal::RpcMethod::NORMAL_RPC, channel),
      stub(inference::GRPCInferenceService::NewStub(channel)) {}

UpstreamCall::UpstreamCall(UpstreamListener& listener, Row& row, std::shared_ptr<Instance> instance)
    : handle(row.handle),
      listener_(listener),
      call_(*row.call),
      index_(row.index),
      row_(&row),
      instance_(std::move(instance)) {}

void UpstreamCall::start() {
  const auto& request = call_.request;
  const std::size_t size = request.row_size(index_, instance_->runtime);
  grpc_slice memory = grpc_slice_malloc(size);
  request.write_row(index_, instance_->runtime, reinterpret_cast<char*>(GRPC_SLICE_START_PTR(memory)));
  const grpc::Slice slice(memory, grpc::Slice::STEAL_REF);
  const grpc::ByteBuffer body(&slice, 1);
  const auto& worker = *instance_->worker;
  reader_.reset(grpc::internal::ClientAsyncResponseReaderHelper::Create<grpc::ByteBuffer>(
      worker.channel.get(), call_.queue, worker.infer_method, &context_, body));
  reader_->StartCall();
  reader_->Finish(&response_, &status_, tag());
}

void UpstreamCall::proceed(bool) {
  listener_.upstream_done(*this, status_);
  delete this;
}

Reply classify(const grpc::Status& status) {
  const std::string& text = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return Reply::kGood;
    case grpc::StatusCode::UNAVAILABLE:
      if (contains(text, "Exceeds maximum queue size")) return Reply::kBusy;
      if (contains(text, "Request timeout expired")) return Reply::kExpired;
      return Reply::kDead;
    case grpc::StatusCode::NOT_FOUND:
      return Reply::kMissing;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Reply::kExpired;
    case grpc::StatusCode::CANCELLED:  // not by us: the server dropped the call as it went down
      return Reply::kDead;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Reply::kRefused;
    case grpc::StatusCode::UNKNOWN:
      return contains(text, "Stream removed") ? Reply::kDead : Reply::kError;
    case grpc::StatusCode::INTERNAL:
      // A dead Python stub: Triton calls its model ready all the same and fails each request after a second.
      if (contains(text, "Stub process") && contains(text, "is not healthy")) return Reply::kDead;
      return contains(text, "RST_STREAM") ? Reply::kDead : Reply::kError;
    default:
      return Reply::kError;
  }
}

grpc::Slice single_slice(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.Valid()) return slice;
  if (!buffer.TrySingleSlice(&slice).ok()) static_cast<void>(buffer.DumpToSingleSlice(&slice));
  return slice;
}

}  // namespace arlo::gateway
