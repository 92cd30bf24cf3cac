// A request of the HTTP API between its bytes and the call that it becomes, and its answer on the way back: what takes
// long where bodies are large. Of one thread at a time, which need not be the lane's.
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
  // Bytes of a body, or of an answer, that are worth another thread. A body may ask for much more than it says: a query
  // is read with each document, and tokens are written with a hundred bytes each.
  static constexpr std::size_t kLongBody = 4 << 10;
  static constexpr std::size_t kLongAnswer = 64 << 10;

  // What came.
  std::unique_ptr<ApiTask> task;
  std::string body;
  std::string id;           // x-request-id
  std::string encoding;     // Content-Encoding
  std::string json_size;    // Inference-Header-Content-Length
  std::string query_model;  // ?model=
  Route::Parts parts;
  bool takes_gzip = false;  // of answers
  bool infinity = false;    // ApiBody's

  // `most`: bytes that a packed body may have when it is opened. One of: fault(); own(), an answer without a call; or
  // call(), the bytes of a ModelInferRequest; or wanted(), a job for a helper: read_again() when it is done.
  void read(const DataService& service, std::size_t most);
  void read_again(const DataService& service);
  // From the bytes of a ModelInferResponse, which call() has been replaced with: fault() or own(). A long one is sent
  // as gzip where the client takes that.
  void write();

  [[nodiscard]] Dialect dialect() const { return task->dialect(); }
  [[nodiscard]] const MaybeFault& fault() const { return fault_; }
  [[nodiscard]] int status() const { return status_; }  // of the fault; 0: what its code stands for
  [[nodiscard]] bool answered() const { return own_.has_value(); }
  [[nodiscard]] ApiAnswer& own() { return *own_; }
  [[nodiscard]] std::string& call() { return call_; }
  [[nodiscard]] std::shared_ptr<text::Job> wanted() const {
    return fault_ ? text::wanted_of(task->text_job()) : nullptr;
  }
  [[nodiscard]] TimeNs patience() const {
    return Call::kBulkPatience * model_->default_timeout_ns;
  }  // for a helper, by default
  [[nodiscard]] std::string model() const { return model_ == nullptr ? "" : model_->name; }

 private:
  MaybeFault find(const DataService& service);
  MaybeFault make(const DataService& service);

  MaybeFault fault_;
  int status_ = 0;
  std::optional<ApiAnswer> own_;
  std::string call_;
  std::shared_ptr<const ModelSpec> model_;
  TimeNs began_ns_ = 0;      // to be made a call
  TimeNs tokenized_ns_ = 0;  // by the task itself, before there is a call
};

}  // namespace arlo::gateway
