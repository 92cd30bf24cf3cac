// A client's request on its way through the gateway.
//
// The life of a request (docs/architecture.md):
//
//   received -> validated -> per row: waiting -> running -> ended -> answered
//                                        ^          |
//                                        +--retry---+   the worker died, or refused for reasons of its own
//
// A Call has one Row per row of the request; each row ends exactly once, with a worker's response or a fault, and the
// call is answered when its last row has ended. Rows that wait may end at once (expired, cancelled); rows that run end
// when their upstream call does.
//
// Ownership: whoever receives the request owns the Call and keeps it until complete() has been called. Threads: a row's
// fields belong to the router's lock until the row has ended, to the completing thread afterwards.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/scheduler.h"
#include "base/clock.h"
#include "base/fault.h"
#include "rewrite/request.h"
#include "rewrite/response.h"

namespace arlo::gateway {

class Call;
class UpstreamCall;

struct Row {
  enum class State : std::uint8_t { kNew, kWaiting, kRunning, kEnded };

  Call* call = nullptr;
  std::uint32_t index = 0;
  std::int32_t length = 0;
  State state = State::kNew;
  dispatch::RequestHandle handle = dispatch::kNone;
  UpstreamCall* upstream = nullptr;  // while running
  std::uint32_t attempts = 0;
  bool lost = false;  // its instance left while it ran; the upstream call is being cancelled
  bool demoted = false;
  std::int32_t level = 0;
  std::int32_t padded = 0;  // tokens it was sent with
  TimeNs started_ns = 0;    // last attempt
  TimeNs ended_ns = 0;
  Fault fault;
  grpc::Slice response;  // contiguous ModelInferResponse of the worker
  RowResponse parsed;    // views into `response`; unset with a fault
};

class Call {
 public:
  virtual ~Call() = default;

  // Called once, after the last row has ended, on any thread, without locks held. May delete this.
  virtual void complete() = 0;

  grpc::CompletionQueue* queue = nullptr;  // the calls to workers finish where the request was received
  grpc::Slice body;                        // contiguous ModelInferRequest; `request` points into it
  InferRequest request;
  std::shared_ptr<const ModelSpec> model;
  std::vector<Row> rows;
  TimeNs received_ns = 0;
  TimeNs deadline_ns = 0;  // always set: the client's, or the model's default
  bool cancelled = false;  // by the client; under the router's lock
  std::atomic<std::uint32_t> open_rows{0};
};

}  // namespace arlo::gateway
