// Rows on their way to a worker and back, as one request.
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

// Who is told when a worker has answered, or will not.
class UpstreamListener {
 public:
  virtual void upstream_done(UpstreamCall& upstream, transport::Answer answer) = 0;

 protected:
  ~UpstreamListener() = default;
};

// Made under the router's lock when rows are started; start() writes them for their runtime and sends them outside the
// lock; deletes itself when the worker is through.
//
// Neither the clients' deadlines nor their cancellations go to the worker: Triton 2.51 executes the rows all the same,
// and may crash or leak the request when a cancellation meets the answer. So this outlives its rows: a row that ends
// before its worker is through is taken out, and its part of the answer is dropped. Whoever take()s a row ends it, or
// passes it on.
class UpstreamCall final {
 public:
  // One row, and the room that it takes.
  class Part {
   public:
    // Nothing when the row was taken already.
    Row* take() { return row_.exchange(nullptr, std::memory_order_acq_rel); }
    [[nodiscard]] Row* row() const { return row_.load(std::memory_order_acquire); }
    [[nodiscard]] UpstreamCall& upstream() const { return *upstream_; }
    [[nodiscard]] dispatch::RequestHandle handle() const { return handle_; }

    // Under the router's lock.
    bool dropped = false;     // its row ended, or went elsewhere, before the worker was through
    bool left_out = false;    // and before it was sent
    Row* answered = nullptr;  // taken when the worker was through

   private:
    friend class UpstreamCall;
    UpstreamCall* upstream_ = nullptr;
    Call* call_ = nullptr;                   // before start() has returned
    const InferRequest* request_ = nullptr;  // the call's, in the tokens that the stage takes
    std::uint32_t index_ = 0;
    dispatch::RequestHandle handle_ = dispatch::kNone;
    OutputSet outputs_ = 0;                                     // that are asked for
    std::shared_ptr<const std::vector<std::uint32_t>> tokens_;  // places of those that are sent; null: all
    std::atomic<Row*> row_ = nullptr;
  };

  // `rows`: at least one, whose requests go with each other. `tokens`: that they are sent with.
  UpstreamCall(UpstreamListener& listener, std::span<Row* const> rows, std::shared_ptr<Instance> instance,
               const RuntimeInfo& runtime, std::int32_t tokens);

  std::string write();                     // the worker's request, as start() does; the calls are no longer held then
  void start();                            // once, on any thread; the rows' calls are held until they have been written
  void cancel() { lane_.drop_workers(); }  // when the gateway ends, and with it all others of the lane

  [[nodiscard]] std::span<Part> parts() { return parts_; }
  [[nodiscard]] std::size_t rows() const { return rows_; }  // that are sent
  [[nodiscard]] const std::shared_ptr<Instance>& instance() const { return instance_; }
  // Before start(): this row is not sent. False: it was the last one, and nothing is to be sent.
  bool leave_out(Part& part);
  // Takes the rows that are still here, and gives each its part of the worker's answer, unless that is null. A fault:
  // it is unusable.
  MaybeFault take_all(const std::shared_ptr<const std::string>& body);

  bool lost = false;  // its instance left: it takes no room any more. Under the router's lock

 private:
  void send();  // on the lane's thread

  UpstreamListener& listener_;
  std::shared_ptr<Instance> instance_;
  const RuntimeInfo& runtime_;  // of instance_
  const std::int32_t tokens_;
  Lane& lane_;  // of the first row's request
  Part one_;    // most are alone
  std::unique_ptr<Part[]> many_;
  std::span<Part> parts_;
  std::size_t rows_;       // that are sent
  std::string trace_;      // traceparent of one of its requests, the first that is sampled; empty: none has one
  OutputSet outputs_ = 0;  // that are asked for
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
Reply classify(const transport::Answer& answer);

}  // namespace arlo::gateway
