// A client's request on its way through the gateway.
//
// The life of a request (docs/architecture.md):
//
//   received -> validated -> per row: waiting -> running -> ended -> answered
//                                        ^          |
//                                        +--retry---+   the worker died, or failed it through no fault of the row
//
// A Call has one Row per row of the request, and ends in one of two ways: every row has its answer, or the call has a
// fault. A fault ends all waiting and running rows at once: the client is answered now, and later answers from workers
// are dropped (UpstreamCall).
//
// Ownership: the receiver of the request owns the Call and keeps it until complete() is called. Threads: the router's
// lock protects a row's fields until it has ended; then they belong to the completing thread. Exception: when a row's
// answer has just come, the thread that took it from its UpstreamCall writes `response` and `parsed`.
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

// Advice for a client whose deadline was too early.
inline constexpr const char* kMoreTime =
    "set a longer deadline (gRPC), x-request-timeout-ms (HTTP) or model.default_timeout_ms";

// A batch, or a single row, that an instance answered with an error. Its rows go elsewhere, and their outcomes show who
// was at fault.
struct Failure {
  std::shared_ptr<Instance> instance;
  bool alone = true;       // the failed request had a single row
  std::uint32_t open = 0;  // its rows that have not ended
  bool acquitted = false;  // one of its rows was at fault, or the instance answered one well
};

struct Row {
  Row();
  ~Row();
  Row(Row&&) noexcept;

  [[nodiscard]] dispatch::Tag tag() const { return reinterpret_cast<dispatch::Tag>(this); }
  // The model that answers next: the call's model, or the row's current stage of a cascade.
  [[nodiscard]] const ModelSpec& model() const;
  // The cascade of the row.
  [[nodiscard]] const Cascade& cascade() const;
  // Queueing time summed over the row's journey so far.
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
  std::int32_t batch_rows = 0;  // of the batch it was sent in, including itself
  TimeNs started_ns = 0;        // last attempt
  TimeNs ended_ns = 0;
  TimeNs unfit_since_ns = 0;  // when no instance in service was long enough for this waiting row; 0: one is
  Row* newer = nullptr;       // neighbours in WaitingRows
  Row* older = nullptr;
  std::vector<std::shared_ptr<Failure>> failures;
  std::shared_ptr<const std::string> response;  // the worker's ModelInferResponse, which other rows may share
  RowResponse parsed;                           // views into `response`
  std::unique_ptr<Journey> journey;             // cascades only
  std::unique_ptr<FlowRow> flow;                // pipelines only
};

// The rows that wait in the gateway, newest first: a list linked through the rows, so that it costs no allocation.
class WaitingRows {
 public:
  void add(Row& row) {
    row.newer = nullptr;
    row.older = newest_;
    if (newest_ != nullptr) newest_->newer = &row;
    newest_ = &row;
  }
  void remove(Row& row) {
    (row.newer != nullptr ? row.newer->older : newest_) = row.older;
    if (row.older != nullptr) row.older->newer = row.newer;
    row.newer = row.older = nullptr;
  }
  [[nodiscard]] Row* newest() const { return newest_; }

 private:
  Row* newest_ = nullptr;
};

class Call {
 public:
  static constexpr std::uint32_t kNoRow = 0xffffffff;

  virtual ~Call() = default;

  // Called once, after the last row has ended, on any thread, without locks held. May delete this. The answer is made
  // and sent on the lane.
  virtual void complete() = 0;
  // Called before complete() if the request wants partial answers; holds the call until `answer` lets go.
  virtual void partial(std::unique_ptr<PartialAnswer> answer);
  // References that keep the call alive: each row until it has ended, each row being written for its worker, and each
  // partial answer.
  void let_go() {
    if (holds.fetch_sub(1, std::memory_order_acq_rel) == 1) complete();
  }

  // Whether the call is bulk: by the client's wish, its token or path, or because it is not a client's.
  [[nodiscard]] bool bulk() const { return kind == Kind::kAudit || as_bulk || request.bulk(); }
  static constexpr TimeNs kBulkPatience = 60;  // times the default timeout
  static constexpr TimeNs kLongestTimeout = TimeNs{24} * 3600 * 1'000'000'000;
  // Sets the deadline if the client sets none. `more`: predicted time of the rows, if there are several.
  void set_default_deadline(TimeNs more) {
    const TimeNs timeout = (bulk() ? kBulkPatience : 1) * model->default_timeout_ns + more;
    deadline_ns = std::min(latest_ns, received_ns + std::min(timeout, kLongestTimeout));
  }
  // The deadline for a helper to tokenise the texts.
  [[nodiscard]] TimeNs text_deadline() const {
    return by_default ? std::min(latest_ns, received_ns + kBulkPatience * model->default_timeout_ns) : deadline_ns;
  }
  // A waiting row gives up slightly before the client does, so that the client learns why.
  [[nodiscard]] TimeNs waiting_deadline() const {
    if (kind == Kind::kVisit) return deadline_ns;
    return deadline_ns - std::min<TimeNs>(50'000'000, (deadline_ns - received_ns) / 20);
  }

  Lane* lane = nullptr;  // the lane that received the request; the calls to workers begin and end there
  std::string body;      // ModelInferRequest; `request` points into it
  std::shared_ptr<const std::string> shared;  // instead, if rows outlive the call: in pipelines of tensors
  InferRequest request;
  Router* router = nullptr;  // of the requested model; null: none
  std::shared_ptr<const ModelSpec> model;
  std::uint64_t client = 0;             // identity for fairness
  std::shared_ptr<text::Job> text_job;  // the helper's tokenisation for the model; null: no helper
  std::vector<Row> rows;
  TimeNs received_ns = 0;
  std::unique_ptr<Trace> trace;         // null: none
  TimeNs tokenized_ns = 0;              // time taken to tokenise its texts
  TimeNs deadline_ns = 0;               // always set: the client's, or the model's default
  TimeNs latest_ns = dispatch::kNever;  // upper bound of a default deadline
  bool by_default = false;              // the deadline is the default
  TimeNs weighed_ns = 0;                // for a request in turn: when its time was forecast, and the forecast
  TimeNs forecast_ns = 0;
  bool in_turn = false;  // requests with many rows are served one after the other (Desk::weigh)
  enum class Kind : std::uint8_t {
    kClient,
    kVisit,  // by the gateway, in a pipeline (flow_call.h)
    kAudit,  // by the gateway, to check an answer (audit.h)
  } kind = Kind::kClient;
  bool as_bulk = false;    // overrides the request's class (of a visit: the client's class)
  bool cancelled = false;  // by the client; under the router's lock
  Fault fault;             // why there is no answer; kOk: there is one. Under the router's lock until complete()
  std::uint32_t fault_row = kNoRow;  // the faulty row, if there are several
  std::uint32_t open_rows = 0;       // rows that have not ended; under the router's lock
  std::atomic<std::uint32_t> holds{0};
  enum class Reader : std::uint8_t { kNone, kAwaited, kBusy };
  std::atomic<Reader> reader{Reader::kNone};  // set while another thread reads a large request
};

}  // namespace arlo::gateway
