// A ModelInfer server that answers at once with a fixed output: the cheapest possible upstream, so that a bench in
// front of it measures the gateway's cost, not the upstream's. For benches only; every model name is known and ready.
//
//   arlo-instant-upstream [--port 0] [--output NAME:DATATYPE:1,384] [--input NAME]...
//
// One thread on src/transport, without streams. Its statistics count all requests received, under any model's name.
// Prints {"port": N} once it listens; SIGTERM or SIGINT ends it.

#include <grpcpp/support/status_code_enum.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kserve.h"
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
    } else if (flag == "--input") {
      s.inputs.push_back(value);
    } else if (flag == "--output") {
      s.outputs.push_back(ParseOutput(value));
    } else {
      throw std::invalid_argument("unknown flag " + std::string(flag));
    }
  }
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

inference::ModelMetadataResponse Metadata(const Settings& settings) {
  inference::ModelMetadataResponse response;
  response.add_versions("1");
  response.set_platform("instant");
  for (const std::string& name : settings.inputs) {
    auto* tensor = response.add_inputs();
    tensor->set_name(name);
    tensor->set_datatype("INT64");
    tensor->add_shape(-1);
    tensor->add_shape(-1);
  }
  for (const Output& output : settings.outputs) {
    auto* tensor = response.add_outputs();
    tensor->set_name(output.name);
    tensor->set_datatype(output.datatype);
    for (const int64_t dim : output.shape) tensor->add_shape(dim);
  }
  return response;
}

class Service final : public arlo::transport::Service {
 public:
  explicit Service(const Settings& settings)
      : metadata_(Metadata(settings)), fixed_(FixedResponse(settings).SerializeAsString()) {}

  std::unique_ptr<arlo::transport::CallHandler> begin(arlo::transport::ServerCall& call) override {
    const std::string_view path = call.path();
    constexpr std::string_view kPrefix = "/inference.GRPCInferenceService/";
    if (path.substr(0, kPrefix.size()) != kPrefix) return nullptr;
    return std::make_unique<Handler>(*this, call, std::string(path.substr(kPrefix.size())));
  }

 private:
  class Handler final : public arlo::transport::CallHandler {
   public:
    Handler(Service& service, arlo::transport::ServerCall& call, std::string method)
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
        inference::ServerLiveResponse response;
        response.set_live(true);
        answer(response.SerializeAsString());
      } else if (method_ == "ServerReady" || method_ == "ModelReady") {
        inference::ModelReadyResponse response;  // the other one has the same bytes
        response.set_ready(true);
        answer(response.SerializeAsString());
      } else if (method_ == "ServerMetadata") {
        inference::ServerMetadataResponse response;
        response.set_name("instant-upstream");
        response.set_version("1");
        answer(response.SerializeAsString());
      } else if (method_ == "ModelMetadata") {
        inference::ModelMetadataRequest request;
        request.ParseFromString(request_);
        inference::ModelMetadataResponse response = service_.metadata_;
        response.set_name(request.name());
        answer(response.SerializeAsString());
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

    Service& service_;
    arlo::transport::ServerCall& call_;
    const std::string method_;
    std::string request_;
  };

  const inference::ModelMetadataResponse metadata_;
  const std::string fixed_;
  std::uint64_t executed_ = 0;
};

int Run(const Settings& settings) {
  arlo::transport::Loop loop;
  Service service(settings);
  arlo::transport::ServerOptions options;
  arlo::transport::Server server(loop, service, options);
  const auto listening = arlo::transport::listen_on("127.0.0.1:" + std::to_string(settings.port));
  const arlo::transport::Listener listener(loop, listening.fd, [&server](int fd) { server.adopt(fd); });
  std::printf("{\"port\": %s}\n", listening.address.substr(listening.address.rfind(':') + 1).c_str());
  std::fflush(stdout);
  loop.run();
  return 0;
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
