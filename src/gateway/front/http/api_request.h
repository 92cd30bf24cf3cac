// The routes of the HTTP API, and a request to one that asks a model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/front/api/task.h"
#include "gateway/front/data_service.h"

namespace arlo::gateway {

// Path prefix: answers use infinity's format, even if the request does not identify it.
inline constexpr std::string_view kInfinity = "/infinity/";

// A row of routes.toml.
struct Route {
  std::string_view method;  // GET, which includes HEAD, or POST
  std::string_view path;    // '*' matches any one part, "**" a model's name, which may have slashes
  Dialect dialect;
  bool open;                               // needs no token
  std::unique_ptr<ApiTask> (*make)();      // for routes that ask a model; null: say()
  using Parts = std::vector<std::string>;  // matched by '*'
  MaybeFault (*say)(DataService& service, const DataService::Context& context, const Parts& parts, HttpAnswer* reply);
};

struct Found {
  const Route* route = nullptr;
  std::string other;  // no route for this method, but for these
  Route::Parts parts;
  Dialect dialect = Dialect::kOpenAi;  // format of errors, with a route or without
};
// `probes`: for the port that serves only probes.
Found find_route(std::string_view method, std::string_view path, bool probes);

// The dialect of the clients that ask for a path, which need not have a route: the owner of its prefix.
Dialect dialect_of(std::string_view path);

// The decoded value in `a=1&b=2`; empty for none.
std::string query_value(std::string_view query, std::string_view name);

// A request between its bytes and its call, and its answer on the way back: the steps that take long for large bodies.
// Used by one thread at a time, not necessarily the lane's.
class ApiRequest {
 public:
  // Bodies and answers with more bytes than this go to another thread. A body may cause far more work than its size: a
  // query is read with each document, and each token is written with a hundred bytes.
  static constexpr std::size_t kLongBody = 4 << 10;
  static constexpr std::size_t kLongAnswer = 64 << 10;

  // The request as received.
  std::unique_ptr<ApiTask> task;
  std::string body;
  std::string id;           // x-request-id
  std::string encoding;     // Content-Encoding
  std::string json_size;    // Inference-Header-Content-Length
  std::string query_model;  // ?model=
  Route::Parts parts;
  bool takes_gzip = false;  // the client accepts it
  bool infinity = false;    // ApiBody's

  // `most`: limit on the bytes of a decompressed body. Results in one of: fault(); own(), an answer without a call;
  // call(), the bytes of a ModelInferRequest; or wanted(), a helper's job: call read_again() when it is done.
  void read(const DataService& service, std::size_t most);
  void read_again(const DataService& service);
  // Reads a ModelInferResponse, which has replaced call(), and makes fault() or own(). A long answer is compressed with
  // gzip if the client accepts it.
  void write();

  [[nodiscard]] Dialect dialect() const { return task->dialect(); }
  [[nodiscard]] const MaybeFault& fault() const { return fault_; }
  [[nodiscard]] int status() const { return status_; }  // of the fault; 0: derived from its code
  [[nodiscard]] bool answered() const { return own_.has_value(); }
  [[nodiscard]] HttpAnswer& own() { return *own_; }
  [[nodiscard]] std::string& call() { return call_; }
  [[nodiscard]] std::shared_ptr<text::Job> wanted() const {
    return fault_ ? text::wanted_of(task->text_job()) : nullptr;
  }
  [[nodiscard]] TimeNs patience() const {
    return Call::kBulkPatience * model_->default_timeout_ns;
  }  // default deadline for a helper
  [[nodiscard]] std::string model() const { return model_ == nullptr ? "" : model_->name; }

 private:
  MaybeFault find(const DataService& service);
  MaybeFault make(const DataService& service);

  MaybeFault fault_;
  int status_ = 0;
  std::optional<HttpAnswer> own_;
  std::string call_;
  std::shared_ptr<const ModelSpec> model_;
  TimeNs began_ns_ = 0;      // when it started to become a call
  TimeNs tokenized_ns_ = 0;  // by the task itself, before there is a call
};

}  // namespace arlo::gateway
