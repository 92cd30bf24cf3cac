// One row on its way to a worker and back.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <memory>
#include <string>

#include "gateway/desk/call.h"
#include "gateway/fleet/instance.h"
#include "gateway/front/rpc.h"

namespace arlo::gateway {

class UpstreamCall;

// Who is told when a worker has answered, or will not.
class UpstreamListener {
 public:
  virtual void upstream_done(UpstreamCall& upstream, const grpc::Status& status) = 0;

 protected:
  ~UpstreamListener() = default;
};

// Made under the router's lock when a row is started; start() writes the row for its runtime and sends it outside the
// lock; deletes itself when the worker is through.
//
// Neither the client's deadline nor its cancellation goes to the worker: Triton 2.51 executes the row all the same, and
// may crash or leak the request when a cancellation meets the answer. So this outlives the row: a row that ends before
// its worker is through is taken out, and the answer is dropped. Whoever take()s the row ends it, or passes it on.
class UpstreamCall final : public Event {
 public:
  UpstreamCall(UpstreamListener& listener, Row& row, std::shared_ptr<Instance> instance);

  void start();                            // once; the row's call is held until it has returned
  void proceed(bool ok) override;          // the worker has answered, or will not
  void cancel() { context_.TryCancel(); }  // when the gateway ends

  // Nothing when the row was taken already.
  Row* take() { return row_.exchange(nullptr, std::memory_order_acq_rel); }
  [[nodiscard]] Row* row() const { return row_.load(std::memory_order_acquire); }
  [[nodiscard]] Call& call() const { return call_; }  // before start() has returned
  [[nodiscard]] const std::shared_ptr<Instance>& instance() const { return instance_; }
  [[nodiscard]] grpc::ByteBuffer& response() { return response_; }

  // Under the router's lock.
  dispatch::RequestHandle handle = dispatch::kNone;
  bool dropped = false;  // its row ended, or went elsewhere, before the worker was through
  bool lost = false;     // its instance left: it takes no room any more

 private:
  UpstreamListener& listener_;
  Call& call_;
  const std::uint32_t index_;
  std::atomic<Row*> row_;
  std::shared_ptr<Instance> instance_;
  grpc::ClientContext context_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader_;
};

// What a worker's answer means for the row and for the instance (measured texts: docs/protocol.md).
enum class Reply : std::uint8_t {
  kGood,
  kDead,     // connection lost or server stopping: eject, run the row elsewhere
  kMissing,  // the runtime is not loaded there: eject, run the row elsewhere
  kBusy,     // Triton's own queue is full: run the row elsewhere
  kExpired,  // Triton's own time-out of its queue
  kError,    // an error or nonsense: the row's fault or the instance's, which another instance can tell
  kRefused,  // the worker says that the request is wrong: answer it
};
Reply classify(const grpc::Status& status);

// One contiguous slice of a received buffer; a copy only when it came in several pieces.
grpc::Slice single_slice(const grpc::ByteBuffer& buffer);

}  // namespace arlo::gateway
