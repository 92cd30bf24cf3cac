// A client's request on its way through the gateway.
//
// The life of a request (docs/architecture.md):
//
//   received -> validated -> per row: waiting -> running -> ended -> answered
//                                        ^          |
//                                        +--retry---+   the worker died, or failed it for reasons of its own
//
// A Call has one Row per row of the request, and ends in one of two ways: every row has its answer, or the call has a
// fault. A fault ends all rows at once, those that wait and those that are at workers: the client is answered now, and
// what the workers say later is dropped (UpstreamCall).
//
// Ownership: whoever receives the request owns the Call and keeps it until complete() has been called. Threads: a row's
// fields belong to the router's lock until the row has ended, to the completing thread afterwards. The exception is a
// row whose answer has just come: the thread that took it from its UpstreamCall writes `response` and `parsed`.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "dispatch/scheduler.h"
#include "gateway/desk/trace.h"
#include "rewrite/request.h"
#include "rewrite/response.h"

namespace arlo::gateway {

class Call;
struct FlowRow;
struct Journey;
struct PartialAnswer;
class Lane;
class Router;
struct Instance;

// What a client can do whose deadline was too early.
inline constexpr const char* kMoreTime =
    "set a longer deadline (gRPC), x-request-timeout-ms (HTTP) or model.default_timeout_ms";

// A batch, or a row alone, that an instance answered with an error of its own. Its rows go elsewhere, and what becomes
// of them tells who was at fault.
struct Failure {
  std::shared_ptr<Instance> instance;
  bool alone = true;       // it was a row alone
  std::uint32_t open = 0;  // of its rows, those that have not ended
  bool acquitted = false;  // one of its rows was at fault, or it has answered one well itself
};

struct Row {
  Row();
  ~Row();
  Row(Row&&) noexcept;

  [[nodiscard]] dispatch::Tag tag() const { return reinterpret_cast<dispatch::Tag>(this); }
  // Who answers it next: the call's model, or the stage of a cascade that it is at.
  [[nodiscard]] const ModelSpec& model() const;
  // That it is a row of.
  [[nodiscard]] const Cascade& cascade() const;
  // Of its whole way so far.
  [[nodiscard]] TimeNs queued_ns() const;
  [[nodiscard]] TimeNs executed_ns() const;

  enum class State : std::uint8_t { kNew, kWaiting, kRunning, kEnded };

  Call* call = nullptr;
  std::uint32_t index = 0;
  std::int32_t length = 0;
  State state = State::kNew;
  dispatch::RequestHandle handle = dispatch::kNone;
  std::uint32_t attempts = 0;
  bool demoted = false;
  std::int32_t level = 0;
  std::int32_t max_length = 0;  // of that level
  std::int32_t padded = 0;      // tokens it was sent with
  std::int32_t batch_rows = 0;  // of the batch it was sent in, itself included
  TimeNs started_ns = 0;        // last attempt
  TimeNs ended_ns = 0;
  TimeNs unfit_since_ns = 0;  // while it waits and no instance in service is long enough; 0: one is
  Row* newer = nullptr;       // neighbours in WaitingRows
  Row* older = nullptr;
  std::vector<std::shared_ptr<Failure>> failures;
  std::shared_ptr<const std::string> response;  // ModelInferResponse of the worker, which may be to other rows too
  RowResponse parsed;                           // views into `response`
  std::unique_ptr<Journey> journey;             // of a cascade alone
  std::unique_ptr<FlowRow> flow;                // of a pipeline alone
};

class Call {
 public:
  static constexpr std::uint32_t kNoRow = 0xffffffff;

  virtual ~Call() = default;

  // Called once, after the last row has ended, on any thread, without locks held. May delete this. The answer is made
  // and sent on the lane.
  virtual void complete() = 0;
  // Before that, of a request that wishes for them; the call is held until it lets go.
  virtual void partial(std::unique_ptr<PartialAnswer> answer);
  // What keeps the call: each row until it has ended, each row that is being written for its worker, and each partial
  // answer.
  void let_go() {
    if (holds.fetch_sub(1, std::memory_order_acq_rel) == 1) complete();
  }

  // Of the class bulk: a client's wish, its token's or path's, or no client's.
  [[nodiscard]] bool bulk() const { return kind == Kind::kAudit || as_bulk || request.bulk(); }
  static constexpr TimeNs kBulkPatience = 60;  // times the default time-out
  static constexpr TimeNs kLongestTimeout = TimeNs{24} * 3600 * 1'000'000'000;
  // Where the client sets no deadline. `more`: predicted time of its rows, where there are several.
  void set_default_deadline(TimeNs more) {
    const TimeNs timeout = (bulk() ? kBulkPatience : 1) * model->default_timeout_ns + more;
    deadline_ns = std::min(latest_ns, received_ns + std::min(timeout, kLongestTimeout));
  }
  // A helper has so long for its texts.
  [[nodiscard]] TimeNs text_deadline() const {
    return by_default ? std::min(latest_ns, received_ns + kBulkPatience * model->default_timeout_ns) : deadline_ns;
  }
  // A row that waits gives up a little before the client does, so that the client learns why.
  [[nodiscard]] TimeNs waiting_deadline() const {
    if (kind == Kind::kVisit) return deadline_ns;
    return deadline_ns - std::min<TimeNs>(50'000'000, (deadline_ns - received_ns) / 20);
  }

  Lane* lane = nullptr;  // where the request was received; the calls to workers begin and end there
  std::string body;      // ModelInferRequest; `request` points into it
  std::shared_ptr<const std::string> shared;  // in its place where rows outlive the call: those of pipelines of tensors
  InferRequest request;
  Router* router = nullptr;  // of the model that is asked for; null: of none
  std::shared_ptr<const ModelSpec> model;
  std::uint64_t client = 0;             // who asks, for fairness
  std::shared_ptr<text::Job> text_job;  // where a helper makes the model's token ids; null: none does
  std::vector<Row> rows;
  TimeNs received_ns = 0;
  std::unique_ptr<Trace> trace;         // null: none
  TimeNs tokenized_ns = 0;              // that its texts took to become token ids
  TimeNs deadline_ns = 0;               // always set: the client's, or the model's default
  TimeNs latest_ns = dispatch::kNever;  // that a default deadline may be
  bool by_default = false;              // the deadline is one
  TimeNs weighed_ns = 0;                // when it was forecast that its rows take so long, of one that is in turn:
  TimeNs forecast_ns = 0;
  bool in_turn = false;  // it is of many rows, and such requests are served one after the other (Desk::weigh)
  enum class Kind : std::uint8_t {
    kClient,
    kVisit,  // the gateway's own, of a pipeline (flow_call.h)
    kAudit,  // the same, to compare its answer with another one (audit.h)
  } kind = Kind::kClient;
  bool as_bulk = false;    // whatever the request itself says (of a visit: as its client asked)
  bool cancelled = false;  // by the client; under the router's lock
  Fault fault;             // why there is no answer; kOk: there is one. Under the router's lock until complete()
  std::uint32_t fault_row = kNoRow;  // whose fault it is, of several rows
  std::uint32_t open_rows = 0;       // that have not ended; under the router's lock
  std::atomic<std::uint32_t> holds{0};
  enum class Reader : std::uint8_t { kNone, kAwaited, kBusy };
  std::atomic<Reader> reader{Reader::kNone};  // another thread that reads a large request
};

}  // namespace arlo::gateway
