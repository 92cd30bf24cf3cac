// A ModelInfer server that answers at once with a fixed output: the cheapest upstream there is, so that a bench in
// front of it sees the gateway's cost and not the upstream's. For benches only; every model name is known and ready.
//
//   arlo-instant-upstream [--port 0] [--threads 1] [--output NAME:DATATYPE:1,384] [--input NAME]... [--server grpc]
//
// `--server transport`: on src/transport instead of gRPC C++, on one thread, without streams; its statistics say how
// many requests it was sent, under any model's name.
//
// Prints {"port": N} once it listens; SIGTERM or SIGINT ends it. Requests are taken and answered as raw bytes on
// completion queues; the other methods are answered by gRPC's own threads.

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kserve_grpc.h"
#include "transport/listener.h"
#include "transport/server.h"

namespace {

struct Output {
  std::string name, datatype;
  std::vector<int64_t> shape;
  size_t bytes = 0;
};

struct Settings {
  int port = 0;
  int threads = 1;
  bool transport = false;
  std::vector<std::string> inputs;
  std::vector<Output> outputs;
};

int64_t ParseInt(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw std::invalid_argument("not a number of 0 or more: " + std::string(text));
  }
  return value;
}

Output ParseOutput(const std::string& text) {
  static const std::map<std::string, size_t> kSizes = {{"FP32", 4},  {"FP16", 2}, {"BF16", 2}, {"INT64", 8},
                                                       {"INT32", 4}, {"FP64", 8}, {"INT8", 1}, {"UINT8", 1}};
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) {
    throw std::invalid_argument("--output takes NAME:DATATYPE:DIM,DIM..., not " + text);
  }
  Output output{text.substr(0, first), text.substr(first + 1, second - first - 1), {}, 0};
  const auto size = kSizes.find(output.datatype);
  if (size == kSizes.end()) throw std::invalid_argument("unknown datatype " + output.datatype);
  output.bytes = size->second;
  std::string_view dims = std::string_view(text).substr(second + 1);
  while (true) {
    const size_t comma = dims.find(',');
    output.shape.push_back(ParseInt(dims.substr(0, comma)));
    output.bytes *= static_cast<size_t>(output.shape.back());
    if (comma == std::string_view::npos) break;
    dims.remove_prefix(comma + 1);
  }
  return output;
}

Settings Parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(std::string(flag) + " takes a value");
    const std::string value = argv[i + 1];
    if (flag == "--port") {
      s.port = static_cast<int>(ParseInt(value));
    } else if (flag == "--threads") {
      s.threads = static_cast<int>(ParseInt(value));
    } else if (flag == "--server") {
      if (value != "grpc" && value != "transport") throw std::invalid_argument("--server is grpc or transport");
      s.transport = value == "transport";
    } else if (flag == "--input") {
      s.inputs.push_back(value);
    } else if (flag == "--output") {
      s.outputs.push_back(ParseOutput(value));
    } else {
      throw std::invalid_argument("unknown flag " + std::string(flag));
    }
  }
  if (s.threads < 1) throw std::invalid_argument("--threads is at least 1");
  if (s.inputs.empty()) s.inputs = {"input_ids", "attention_mask"};
  if (s.outputs.empty()) s.outputs = {ParseOutput("embedding:FP32:1,384")};
  return s;
}

inference::ModelInferResponse FixedResponse(const Settings& settings) {
  inference::ModelInferResponse response;
  response.set_model_name("instant");
  response.set_model_version("1");
  for (const Output& output : settings.outputs) {
    auto* tensor = response.add_outputs();
    tensor->set_name(output.name);
    tensor->set_datatype(output.datatype);
    for (const int64_t dim : output.shape) tensor->add_shape(dim);
    std::string raw(output.bytes, '\0');
    if (output.datatype == "FP32") {  // as numbers of a vector are, not ones that are quickly written
      std::mt19937 random(1);
      for (size_t at = 0; at < raw.size(); at += sizeof(float)) {
        const float value = (static_cast<float>(random()) / 4294967296.0F - 0.5F) / 5;
        std::memcpy(raw.data() + at, &value, sizeof value);
      }
    }
    response.add_raw_output_contents(std::move(raw));
  }
  return response;
}

using Base = inference::GRPCInferenceService::WithRawMethod_ModelInfer<inference::GRPCInferenceService::Service>;

class Service final : public Base {
 public:
  explicit Service(const Settings& settings) : settings_(settings), fixed_(FixedResponse(settings)) {}

  grpc::Status ServerLive(grpc::ServerContext*, const inference::ServerLiveRequest*,
                          inference::ServerLiveResponse* response) override {
    response->set_live(true);
    return grpc::Status::OK;
  }
  grpc::Status ServerReady(grpc::ServerContext*, const inference::ServerReadyRequest*,
                           inference::ServerReadyResponse* response) override {
    response->set_ready(true);
    return grpc::Status::OK;
  }
  grpc::Status ModelReady(grpc::ServerContext*, const inference::ModelReadyRequest*,
                          inference::ModelReadyResponse* response) override {
    response->set_ready(true);
    return grpc::Status::OK;
  }
  grpc::Status ServerMetadata(grpc::ServerContext*, const inference::ServerMetadataRequest*,
                              inference::ServerMetadataResponse* response) override {
    response->set_name("instant-upstream");
    response->set_version("1");
    return grpc::Status::OK;
  }
  grpc::Status ModelMetadata(grpc::ServerContext*, const inference::ModelMetadataRequest* request,
                             inference::ModelMetadataResponse* response) override {
    response->set_name(request->name());
    response->add_versions("1");
    response->set_platform("instant");
    for (const std::string& name : settings_.inputs) {
      auto* tensor = response->add_inputs();
      tensor->set_name(name);
      tensor->set_datatype("INT64");
      tensor->add_shape(-1);
      tensor->add_shape(-1);
    }
    for (const Output& output : settings_.outputs) {
      auto* tensor = response->add_outputs();
      tensor->set_name(output.name);
      tensor->set_datatype(output.datatype);
      for (const int64_t dim : output.shape) tensor->add_shape(dim);
    }
    return grpc::Status::OK;
  }
  grpc::Status ModelStreamInfer(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<inference::ModelStreamInferResponse, inference::ModelInferRequest>* stream) override {
    inference::ModelInferRequest request;
    inference::ModelStreamInferResponse response;
    *response.mutable_infer_response() = fixed_;
    while (stream->Read(&request)) {
      response.mutable_infer_response()->set_id(request.id());
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

 private:
  const Settings& settings_;
  const inference::ModelInferResponse fixed_;
};

// One call at a time; serves again and again on its queue.
class Slot {
 public:
  Slot(Service* service, grpc::ServerCompletionQueue* queue, const grpc::ByteBuffer* response)
      : service_(service), queue_(queue), response_(response) {
    Listen();
  }

  void Proceed(bool ok) {
    if (!answering_ && ok) {
      answering_ = true;
      writer_->Finish(*response_, grpc::Status::OK, this);
    } else if (answering_) {
      Listen();
    }  // else: the server shuts down
  }

 private:
  void Listen() {
    answering_ = false;
    writer_.reset();
    context_.emplace();
    request_.Clear();
    writer_.emplace(&*context_);
    service_->RequestModelInfer(&*context_, &request_, &*writer_, queue_, queue_, this);
  }

  Service* const service_;
  grpc::ServerCompletionQueue* const queue_;
  const grpc::ByteBuffer* const response_;
  bool answering_ = false;
  std::optional<grpc::ServerContext> context_;
  std::optional<grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>> writer_;
  grpc::ByteBuffer request_;
};

using Instant = Service;

// The same on src/transport.
class OnTransport final : public arlo::transport::Service {
 public:
  explicit OnTransport(const Settings& settings)
      : service_(settings), fixed_(FixedResponse(settings).SerializeAsString()) {}

  std::unique_ptr<arlo::transport::CallHandler> begin(arlo::transport::ServerCall& call) override {
    const std::string_view path = call.path();
    constexpr std::string_view kPrefix = "/inference.GRPCInferenceService/";
    if (path.substr(0, kPrefix.size()) != kPrefix) return nullptr;
    return std::make_unique<Handler>(*this, call, std::string(path.substr(kPrefix.size())));
  }

 private:
  class Handler final : public arlo::transport::CallHandler {
   public:
    Handler(OnTransport& service, arlo::transport::ServerCall& call, std::string method)
        : service_(service), call_(call), method_(std::move(method)) {}
    void message(std::string bytes) override { request_ = std::move(bytes); }
    void half_closed() override {
      if (method_ == "ModelInfer") {
        ++service_.executed_;
        answer(service_.fixed_);
      } else if (method_ == "ModelStatistics") {
        inference::ModelStatisticsResponse response;
        response.add_model_stats()->set_execution_count(service_.executed_);
        answer(response.SerializeAsString());
      } else if (method_ == "ServerLive") {
        answer<inference::ServerLiveRequest, inference::ServerLiveResponse>(&Instant::ServerLive);
      } else if (method_ == "ServerReady") {
        answer<inference::ServerReadyRequest, inference::ServerReadyResponse>(&Instant::ServerReady);
      } else if (method_ == "ModelReady") {
        answer<inference::ModelReadyRequest, inference::ModelReadyResponse>(&Instant::ModelReady);
      } else if (method_ == "ServerMetadata") {
        answer<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(&Instant::ServerMetadata);
      } else if (method_ == "ModelMetadata") {
        answer<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(&Instant::ModelMetadata);
      } else {
        call_.finish(grpc::StatusCode::UNIMPLEMENTED, "not here", {});
      }
    }
    void closed(bool) override {}

   private:
    void answer(std::string bytes) {
      call_.send(std::move(bytes));
      call_.finish(grpc::StatusCode::OK, "", {});
    }
    template <class Request, class Response>
    void answer(grpc::Status (Instant::*method)(grpc::ServerContext*, const Request*, Response*)) {
      Request request;
      Response response;
      request.ParseFromString(request_);
      static_cast<void>((service_.service_.*method)(nullptr, &request, &response));
      answer(response.SerializeAsString());
    }

    OnTransport& service_;
    arlo::transport::ServerCall& call_;
    const std::string method_;
    std::string request_;
  };

  Instant service_;
  const std::string fixed_;
  std::uint64_t executed_ = 0;
};

int RunOnTransport(const Settings& settings) {
  arlo::transport::Loop loop;
  OnTransport service(settings);
  arlo::transport::ServerOptions options;
  arlo::transport::Server server(loop, service, options);
  const auto listening = arlo::transport::listen_on("127.0.0.1:" + std::to_string(settings.port));
  const arlo::transport::Listener listener(loop, listening.fd, [&server](int fd) { server.adopt(fd); });
  std::printf("{\"port\": %s}\n", listening.address.substr(listening.address.rfind(':') + 1).c_str());
  std::fflush(stdout);
  loop.run();
  return 0;
}

int Run(const Settings& settings) {
  if (settings.transport) return RunOnTransport(settings);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Service service(settings);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(settings.port), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  for (int t = 0; t < settings.threads; ++t) queues.push_back(builder.AddCompletionQueue());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) throw std::invalid_argument("cannot listen on the port");

  const std::string bytes = FixedResponse(settings).SerializeAsString();
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer response(&slice, 1);
  constexpr int kSlotsPerQueue = 256;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<std::thread> threads;
  for (const auto& queue : queues) {
    for (int i = 0; i < kSlotsPerQueue; ++i) {
      slots.push_back(std::make_unique<Slot>(&service, queue.get(), &response));
    }
    threads.emplace_back([&queue] {
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) static_cast<Slot*>(tag)->Proceed(ok);
    });
  }
  std::printf("{\"port\": %d}\n", port);
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  // Nothing here is worth a graceful end, and slots would listen again on queues that close.
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(Parse(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "arlo-instant-upstream: %s\n", error.what());
    return 2;
  }
}
