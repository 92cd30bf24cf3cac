#include "loadgen/client.h"

#include <grpc/slice.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "loadgen/records.h"

namespace arlo::loadgen {

namespace {

constexpr char kMethod[] = "/inference.GRPCInferenceService/ModelInfer";

std::string ReadFile(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<grpc::ChannelCredentials> Credentials(const Options& o) {
  if (!o.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = ReadFile(o.ca_file);
  ssl.pem_cert_chain = ReadFile(o.cert_file);
  ssl.pem_private_key = ReadFile(o.key_file);
  return grpc::SslCredentials(ssl);
}

grpc::ChannelArguments Arguments(const Options& o) {
  grpc::ChannelArguments args;
  args.SetMaxSendMessageSize(-1);
  args.SetMaxReceiveMessageSize(-1);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // or all channels would share one connection
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);             // failures must be visible
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // its pings are load that no request asked for
  if (!o.server_name.empty()) args.SetSslTargetNameOverride(o.server_name);
  return args;
}

gpr_timespec ToGpr(Clock::time_point at) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
  return {ns / 1'000'000'000, static_cast<int32_t>(ns % 1'000'000'000), GPR_CLOCK_MONOTONIC};
}

}  // namespace

Client::Client(const Options& options, const Plan& plan, Report* report) : options_(options), report_(report) {
  payloads_.reserve(plan.payloads());
  for (size_t p = 0; p < plan.payloads(); ++p) {
    const std::string_view bytes = plan.payload(p);
    const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
    payloads_.emplace_back(&slice, 1);
  }
  if (!options.token_file.empty()) {
    std::string token = ReadFile(options.token_file);
    while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back()))) token.pop_back();
    authorization_ = "Bearer " + token;
  }
  const auto credentials = Credentials(options);
  for (uint32_t c = 0; c < options.channels; ++c) {
    connections_.push_back(grpc::CreateCustomChannel(options.target, credentials, Arguments(options)));
    stubs_.push_back(std::make_unique<grpc::GenericStub>(connections_.back()));
  }
  for (uint32_t t = 0; t < std::min(options.threads, options.channels); ++t) {
    queues_.push_back(std::make_unique<grpc::CompletionQueue>());
  }
  if (!options.responses.empty()) {
    responses_ = std::fopen(options.responses.c_str(), "wb");
    if (responses_ == nullptr) {
      throw std::runtime_error("cannot write " + options.responses + ": " + std::strerror(errno));
    }
  }
}

Client::~Client() {
  if (responses_ != nullptr) std::fclose(responses_);
}

bool Client::Connect() {
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.connect_s));
  for (const auto& connection : connections_) connection->GetState(/*try_to_connect=*/true);
  for (const auto& connection : connections_) {
    if (!connection->WaitForConnected(ToGpr(until))) return false;
  }
  return true;
}

bool Client::WarmUp(uint32_t n, std::string* error) {
  for (uint32_t i = 0; i < n; ++i) {
    Call* call = Acquire();
    call->record.payload = static_cast<uint32_t>(i % payloads_.size());
    const size_t channel = i % channels();
    Start(call, channel, Clock::now() + std::chrono::seconds(60));
    void* tag = nullptr;
    bool ok = false;
    queues_[channel % threads()]->Next(&tag, &ok);
    const grpc::Status status = call->status;
    Release(call);
    if (!status.ok()) {
      *error = "warm-up request " + std::to_string(i) + " ended with code " + std::to_string(status.error_code()) +
               ": " + status.error_message();
      return false;
    }
  }
  return true;
}

Call* Client::Acquire() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return &calls_.emplace_back();
  Call* call = free_.back();
  free_.pop_back();
  return call;
}

void Client::Start(Call* call, size_t channel, std::optional<Clock::time_point> deadline) {
  {
    const std::lock_guard lock(mutex_);
    call->context.emplace();
    call->live = true;
  }
  if (deadline) call->context->set_deadline(ToGpr(*deadline));
  if (!authorization_.empty()) call->context->AddMetadata("authorization", authorization_);
  call->reader = stubs_[channel]->PrepareUnaryCall(&*call->context, kMethod, payloads_[call->record.payload],
                                                   queues_[channel % threads()].get());
  call->reader->StartCall();
  call->reader->Finish(&call->response, &call->status, call);
}

void Client::Finish(Call* call) {
  Record& record = call->record;
  record.code = static_cast<uint8_t>(call->status.error_code());
  if (call->status.ok()) {
    grpc::Slice bytes;
    if (!call->response.TrySingleSlice(&bytes).ok() && !call->response.DumpToSingleSlice(&bytes).ok()) {
      bytes = grpc::Slice();
    }
    const std::string_view view(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
    if (!ScanResponse(view, &record)) {
      record.code = static_cast<uint8_t>(grpc::StatusCode::INTERNAL);
      record.error = report_->Error(record.code, "the answer is not a ModelInferResponse");
    } else if (responses_ != nullptr && record.index % options_.response_every == 0) {
      KeepResponse(record, bytes);
    }
  } else {
    record.error = report_->Error(record.code, call->status.error_message());
  }
  report_->Done(record.code, record.done_us - record.scheduled_us);
}

void Client::KeepResponse(const Record& record, const grpc::Slice& bytes) {
  const uint32_t header[2] = {record.index, static_cast<uint32_t>(bytes.size())};
  const std::lock_guard lock(responses_mutex_);
  responses_ok_ = responses_ok_ && std::fwrite(header, sizeof(header), 1, responses_) == 1 &&
                  std::fwrite(bytes.begin(), 1, bytes.size(), responses_) == bytes.size();
}

void Client::CloseResponses() {
  if (responses_ == nullptr) return;
  responses_ok_ = std::fclose(responses_) == 0 && responses_ok_;
  responses_ = nullptr;
  if (!responses_ok_) throw std::runtime_error("cannot write " + options_.responses + ": disk full?");
}

void Client::Release(Call* call) {
  call->reader.reset();
  call->response.Clear();
  call->status = grpc::Status();
  const std::lock_guard lock(mutex_);
  call->context.reset();
  call->live = false;
  call->record = Record();
  free_.push_back(call);
}

void Client::CancelAll() {
  const std::lock_guard lock(mutex_);
  for (Call& call : calls_) {
    if (call.live) call.context->TryCancel();
  }
}

}  // namespace arlo::loadgen
