// A request of the HTTP API between its bytes and its call, and its answer on the way back: the steps that take long
// for large bodies. Used by one thread at a time, not necessarily the lane's.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gateway/front/api/task.h"
#include "gateway/front/data_service.h"
#include "gateway/front/http/routes.h"

namespace arlo::gateway {

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
  [[nodiscard]] ApiAnswer& own() { return *own_; }
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
  std::optional<ApiAnswer> own_;
  std::string call_;
  std::shared_ptr<const ModelSpec> model_;
  TimeNs began_ns_ = 0;      // when it started to become a call
  TimeNs tokenized_ns_ = 0;  // by the task itself, before there is a call
};

}  // namespace arlo::gateway
