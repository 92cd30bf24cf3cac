#include "gateway/fleet/upstream.h"

#include <grpc/slice.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

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

UpstreamCall::UpstreamCall(UpstreamListener& listener, std::span<Row* const> rows, std::shared_ptr<Instance> instance,
                           const RuntimeInfo& runtime, std::int32_t tokens)
    : listener_(listener),
      instance_(std::move(instance)),
      runtime_(runtime),
      tokens_(tokens),
      queue_(rows.front()->call->queue),
      many_(rows.size() > 1 ? std::make_unique<Part[]>(rows.size()) : nullptr),
      parts_(many_ == nullptr ? &one_ : many_.get(), rows.size()),
      rows_(rows.size()) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Part& part = parts_[i];
    part.upstream_ = this;
    part.call_ = rows[i]->call;
    part.index_ = rows[i]->index;
    part.handle_ = rows[i]->handle;
    part.row_.store(rows[i], std::memory_order_relaxed);
  }
}

bool UpstreamCall::leave_out(Part& part) {
  part.left_out = part.dropped = true;
  part.take();
  return --rows_ > 0;
}

void UpstreamCall::start() {
  std::vector<WorkerRequest::Row> rows;
  rows.reserve(rows_);
  for (const Part& part : parts_) {
    if (!part.left_out) rows.push_back({&part.call_->request, part.index_});
  }
  const WorkerRequest request(rows, runtime_, tokens_);
  outputs_ = request.outputs();
  grpc_slice memory = grpc_slice_malloc(request.size());
  request.write(reinterpret_cast<char*>(GRPC_SLICE_START_PTR(memory)));
  const grpc::Slice slice(memory, grpc::Slice::STEAL_REF);
  const grpc::ByteBuffer body(&slice, 1);
  for (const Part& part : parts_) {
    if (!part.left_out) part.call_->let_go();
  }
  const auto& worker = *instance_->worker;
  reader_.reset(grpc::internal::ClientAsyncResponseReaderHelper::Create<grpc::ByteBuffer>(
      worker.channel.get(), queue_, worker.infer_method, &context_, body));
  reader_->StartCall();
  reader_->Finish(&response_, &status_, tag());
}

MaybeFault UpstreamCall::take_all(bool good) {
  const Row* first = nullptr;
  for (Part& part : parts_) {
    part.answered = part.take();
    if (first == nullptr) first = part.answered;
  }
  if (!good || first == nullptr) return {};
  const grpc::Slice body = single_slice(response_);
  const std::string_view bytes(reinterpret_cast<const char*>(body.begin()), body.size());
  WorkerResponse answer;
  if (auto fault = answer.parse(bytes, *first->call->model, outputs_, rows_, tokens_)) return fault;
  std::size_t at = 0;
  for (const Part& part : parts_) {
    if (part.left_out) continue;
    if (Row* row = part.answered; row != nullptr) {
      row->response = body;
      row->parsed = answer.row(at, row->call->request.outputs());
    }
    ++at;
  }
  return {};
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
