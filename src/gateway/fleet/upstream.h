// Sends rows to a worker as one request, and returns its answer.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "gateway/desk/call.h"
#include "gateway/fleet/instance.h"
#include "gateway/fleet/lane.h"

namespace arlo::gateway {

class UpstreamCall;

// Called when a worker has answered, or will not.
class UpstreamListener {
 public:
  virtual void upstream_done(UpstreamCall& upstream, transport::Answer answer) = 0;

 protected:
  ~UpstreamListener() = default;
};

// Made under the router's lock when rows are started. Outside the lock, start() writes the rows for their runtime and
// sends them. Deletes itself when the worker is done.
//
// Clients' deadlines and cancellations do not go to the worker: Triton 2.51 executes the rows anyway, and may crash or
// leak the request when a cancellation meets the answer. So this outlives its rows: a row that ends before its worker
// is done is taken out, and its part of the answer is dropped. The caller of take() must end the row or pass it on.
class UpstreamCall final {
 public:
  // One row and its slot.
  class Part {
   public:
    // Returns null if the row was already taken.
    Row* take() { return row_.exchange(nullptr, std::memory_order_acq_rel); }
    [[nodiscard]] Row* row() const { return row_.load(std::memory_order_acquire); }
    [[nodiscard]] UpstreamCall& upstream() const { return *upstream_; }
    [[nodiscard]] dispatch::RequestHandle handle() const { return handle_; }

    // Under the router's lock.
    bool dropped = false;     // its row ended, or went elsewhere, before the worker was done
    bool left_out = false;    // dropped before it was sent
    Row* answered = nullptr;  // taken when the worker was done

   private:
    friend class UpstreamCall;
    UpstreamCall* upstream_ = nullptr;
    Call* call_ = nullptr;                   // until start() has returned
    const InferRequest* request_ = nullptr;  // the call's, in the stage's tokens
    std::uint32_t index_ = 0;
    dispatch::RequestHandle handle_ = dispatch::kNone;
    OutputSet outputs_ = 0;                                     // requested from the worker
    std::shared_ptr<const std::vector<std::uint32_t>> tokens_;  // indexes of those that are sent; null: all
    std::atomic<Row*> row_ = nullptr;
  };

  // `rows`: at least one; their requests must be compatible. `tokens`: their padded length.
  UpstreamCall(UpstreamListener& listener, std::span<Row* const> rows, std::shared_ptr<Instance> instance,
               const RuntimeInfo& runtime, std::int32_t tokens);

  std::string write();                     // the worker's request, as start() sends it; releases the calls
  void start();                            // once, on any thread; the rows' calls are held until they have been written
  void cancel() { lane_.drop_workers(); }  // when the gateway ends; drops all other calls of the lane as well

  [[nodiscard]] std::span<Part> parts() { return parts_; }
  [[nodiscard]] std::size_t rows() const { return rows_; }  // number sent
  [[nodiscard]] const std::shared_ptr<Instance>& instance() const { return instance_; }
  // Before start(): drops this row. Returns false if it was the last one, and nothing is to be sent.
  bool leave_out(Part& part);
  // Takes the remaining rows and gives each its part of the worker's answer, unless `body` is null. A fault: the answer
  // is unusable.
  MaybeFault take_all(const std::shared_ptr<const std::string>& body);

  bool lost = false;  // its instance left: it no longer holds a slot. Under the router's lock

 private:
  void send();  // on the lane's thread

  UpstreamListener& listener_;
  std::shared_ptr<Instance> instance_;
  const RuntimeInfo& runtime_;  // of instance_
  const std::int32_t tokens_;
  Lane& lane_;  // of the first row's request
  Part one_;    // most calls have one row
  std::unique_ptr<Part[]> many_;
  std::span<Part> parts_;
  std::size_t rows_;       // number sent
  std::string trace_;      // traceparent of its first sampled request; empty: none has one
  OutputSet outputs_ = 0;  // requested from the worker
};

// The meaning of a worker's answer for the row and for the instance (measured texts: docs/protocol.md).
enum class Reply : std::uint8_t {
  kGood,
  kDead,     // connection lost or server stopping: eject, run the row elsewhere
  kMissing,  // the runtime is not loaded there: eject, run the row elsewhere
  kBusy,     // Triton's own queue is full: run the row elsewhere
  kExpired,  // Triton's queue timeout
  kError,    // an error or nonsense: the fault of the row or the instance, which another instance can show
  kRefused,  // the worker says that the request is wrong: return that to the client
};
Reply classify(const transport::Answer& answer);

}  // namespace arlo::gateway
