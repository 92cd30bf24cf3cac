// One row on its way to a worker and back.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <memory>

#include "gateway/desk/call.h"
#include "gateway/fleet/instance.h"
#include "gateway/front/rpc.h"

namespace arlo::gateway {

class Router;

// Made under the router's lock when a row is started; start() writes the row for its runtime and sends it outside the
// lock. Reference-counted: one for the call under way, one for each pending try_cancel().
class UpstreamCall final : public Event {
 public:
  UpstreamCall(Router& router, Row& row, std::shared_ptr<Instance> instance);

  void start();
  void proceed(bool ok) override;  // the worker has answered, or will not
  // Before or after start(); the call then ends soon, usually with CANCELLED.
  void try_cancel() { context_.TryCancel(); }

  void ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void unref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  [[nodiscard]] Row& row() { return row_; }
  [[nodiscard]] const std::shared_ptr<Instance>& instance() const { return instance_; }
  [[nodiscard]] grpc::ByteBuffer& response() { return response_; }

 private:
  ~UpstreamCall() = default;

  Router& router_;
  Row& row_;
  std::shared_ptr<Instance> instance_;
  grpc::ClientContext context_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader_;
  std::atomic<int> refs_{1};
};

// What an error of a worker means for the row and for the instance (measured texts: docs/protocol.md).
enum class WorkerFailure : std::uint8_t {
  kDead,     // connection lost or server stopping: eject, run the row elsewhere
  kMissing,  // the runtime is not loaded there: eject, run the row elsewhere
  kBusy,     // Triton's own queue is full: run the row elsewhere
  kExpired,  // the deadline passed on the worker
  kRow,      // the row's own error: answer it
};
WorkerFailure classify(const grpc::Status& status);

// One contiguous slice of a received buffer; a copy only when it came in several pieces.
grpc::Slice single_slice(const grpc::ByteBuffer& buffer);

}  // namespace arlo::gateway
